/* SPDX-License-Identifier: Apache-2.0
 *
 * An OpenCL layer that keeps one process to a slice of device memory, whoever's device it is.
 *
 * The ICD loader puts it between a lease's server and the vendor's library (OPENCL_LAYERS). What the server allocates is
 * counted to the byte as it is asked for, and given back when the object is gone; what would go over the slice is refused
 * before the vendor's library learns of it. Small allocations cost a device more than their bytes, so their number is
 * bound, too. Memory of programs, kernels and queues is not counted: OpenCL does not say how much it is.
 *
 * NUMA_EXT_SLICE_BYTES    the slice; without it, or where it is no number, no device is offered
 * NUMA_EXT_SLICE_OBJECTS  most allocations at a time, by default 8192
 * NUMA_EXT_SLICE_FILE     where its counters are kept (struct counters, in the byte order of the host)
 *
 * Source: OpenCL 3.0 API; cl_loader_layers of the Khronos ICD loader, which ocl-icd 2.3 has as well.
 */
#define CL_TARGET_OPENCL_VERSION 300
#include <CL/cl.h>
#include <CL/cl_layer.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define MOST_OBJECTS 8192
#define MAGIC UINT64_C(0x3163696c736d756e) /* "numslic1" */

/* Read by host_agent/transports/pocl.py. */
struct counters {
  uint64_t magic;
  uint64_t limit;   /* bytes */
  uint64_t held;    /* bytes, now */
  uint64_t peak;    /* bytes */
  uint64_t objects; /* allocations, now */
  uint64_t refused; /* allocations, ever */
  uint64_t busy_ns; /* in which a kernel ran or waited to, up to the last time that none did */
  uint64_t since_ns; /* CLOCK_MONOTONIC: since then one does; 0: none does */
};

struct svm {
  void *start;
  uint64_t bytes;
  struct svm *next;
};

static const cl_icd_dispatch *next;
static cl_icd_dispatch ours;
static struct counters private_counters, *seen = &private_counters;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t most_objects = MOST_OBJECTS;
static uint64_t kernels;
static struct svm *svms;

static uint64_t now_ns(void)
{
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Count an allocation; return whether there was room for it. */
static int take(uint64_t bytes)
{
  pthread_mutex_lock(&lock);
  int fits = bytes <= seen->limit - seen->held && seen->objects < most_objects;
  if (fits) {
    seen->held += bytes;
    seen->objects++;
    if (seen->held > seen->peak)
      seen->peak = seen->held;
  } else {
    seen->refused++;
  }
  pthread_mutex_unlock(&lock);
  return fits;
}

static void give_back(uint64_t bytes)
{
  pthread_mutex_lock(&lock);
  seen->held -= bytes;
  seen->objects--;
  pthread_mutex_unlock(&lock);
}

static void CL_CALLBACK is_gone(cl_mem object, void *bytes)
{
  (void)object;
  give_back((uint64_t)(uintptr_t)bytes);
}

/* What was counted for an object is given back when it is gone, or was not made. */
static cl_mem kept(cl_mem object, uint64_t bytes, cl_int *error)
{
  if (object == NULL) {
    give_back(bytes);
  } else if (next->clSetMemObjectDestructorCallback(object, is_gone, (void *)(uintptr_t)bytes) != CL_SUCCESS) {
    next->clReleaseMemObject(object);
    give_back(bytes);
    if (error != NULL)
      *error = CL_OUT_OF_HOST_MEMORY;
    return NULL;
  }
  return object;
}

static cl_mem refused(cl_int *error)
{
  if (error != NULL)
    *error = CL_MEM_OBJECT_ALLOCATION_FAILURE;
  return NULL;
}

static cl_mem CL_API_CALL create_buffer(cl_context context, cl_mem_flags flags, size_t bytes, void *host, cl_int *error)
{
  if (!take(bytes))
    return refused(error);
  return kept(next->clCreateBuffer(context, flags, bytes, host, error), bytes, error);
}

static cl_mem CL_API_CALL create_buffer_with(cl_context context, const cl_mem_properties *properties, cl_mem_flags flags,
                                             size_t bytes, void *host, cl_int *error)
{
  if (!take(bytes))
    return refused(error);
  return kept(next->clCreateBufferWithProperties(context, properties, flags, bytes, host, error), bytes, error);
}

static uint64_t channels(cl_channel_order order)
{
  switch (order) {
  case CL_R:
  case CL_A:
  case CL_INTENSITY:
  case CL_LUMINANCE:
  case CL_DEPTH:
    return 1;
  case CL_RG:
  case CL_RA:
  case CL_Rx:
    return 2;
  default:
    return 4; /* three are stored as four */
  }
}

static uint64_t channel_bytes(cl_channel_type type)
{
  switch (type) {
  case CL_SNORM_INT8:
  case CL_UNORM_INT8:
  case CL_SIGNED_INT8:
  case CL_UNSIGNED_INT8:
    return 1;
  case CL_SNORM_INT16:
  case CL_UNORM_INT16:
  case CL_SIGNED_INT16:
  case CL_UNSIGNED_INT16:
  case CL_HALF_FLOAT:
    return 2;
  default:
    return 4; /* of packed formats, more than they need */
  }
}

/* Bytes of an image; UINT64_MAX where there are more than can be counted. */
static uint64_t image_bytes(const cl_image_format *format, const cl_image_desc *image)
{
  uint64_t factors[] = {image->image_width, image->image_height, image->image_depth, image->image_array_size};
  uint64_t bytes = channels(format->image_channel_order) * channel_bytes(format->image_channel_data_type);
  int used[] = {1, 0, 0, 0};
  switch (image->image_type) {
  case CL_MEM_OBJECT_IMAGE3D:
    used[2] = 1; /* fall through */
  case CL_MEM_OBJECT_IMAGE2D:
    used[1] = 1;
    break;
  case CL_MEM_OBJECT_IMAGE2D_ARRAY:
    used[1] = 1; /* fall through */
  case CL_MEM_OBJECT_IMAGE1D_ARRAY:
    used[3] = 1;
    break;
  default:
    break;
  }
  for (int i = 0; i < 4; i++)
    if (used[i] && __builtin_mul_overflow(bytes, factors[i] ? factors[i] : 1, &bytes))
      return UINT64_MAX;
  return bytes;
}

/* An image over a buffer, or over another image, has no memory of its own. */
static uint64_t own_bytes(const cl_image_format *format, const cl_image_desc *image)
{
  return format == NULL || image == NULL || image->mem_object != NULL ? 0 : image_bytes(format, image);
}

static cl_mem CL_API_CALL create_image(cl_context context, cl_mem_flags flags, const cl_image_format *format,
                                       const cl_image_desc *image, void *host, cl_int *error)
{
  uint64_t bytes = own_bytes(format, image);
  if (!take(bytes))
    return refused(error);
  return kept(next->clCreateImage(context, flags, format, image, host, error), bytes, error);
}

static cl_mem CL_API_CALL create_image_with(cl_context context, const cl_mem_properties *properties, cl_mem_flags flags,
                                            const cl_image_format *format, const cl_image_desc *image, void *host,
                                            cl_int *error)
{
  uint64_t bytes = own_bytes(format, image);
  if (!take(bytes))
    return refused(error);
  return kept(next->clCreateImageWithProperties(context, properties, flags, format, image, host, error), bytes, error);
}

static cl_mem CL_API_CALL create_image_2d(cl_context context, cl_mem_flags flags, const cl_image_format *format,
                                          size_t width, size_t height, size_t pitch, void *host, cl_int *error)
{
  cl_image_desc image = {.image_type = CL_MEM_OBJECT_IMAGE2D, .image_width = width, .image_height = height};
  uint64_t bytes = own_bytes(format, &image);
  if (!take(bytes))
    return refused(error);
  return kept(next->clCreateImage2D(context, flags, format, width, height, pitch, host, error), bytes, error);
}

static cl_mem CL_API_CALL create_image_3d(cl_context context, cl_mem_flags flags, const cl_image_format *format,
                                          size_t width, size_t height, size_t depth, size_t pitch, size_t slice,
                                          void *host, cl_int *error)
{
  cl_image_desc image = {
      .image_type = CL_MEM_OBJECT_IMAGE3D, .image_width = width, .image_height = height, .image_depth = depth};
  uint64_t bytes = own_bytes(format, &image);
  if (!take(bytes))
    return refused(error);
  return kept(next->clCreateImage3D(context, flags, format, width, height, depth, pitch, slice, host, error), bytes,
              error);
}

static cl_mem CL_API_CALL create_pipe(cl_context context, cl_mem_flags flags, cl_uint packet, cl_uint packets,
                                      const cl_pipe_properties *properties, cl_int *error)
{
  uint64_t bytes = (uint64_t)packet * packets;
  if (!take(bytes))
    return refused(error);
  return kept(next->clCreatePipe(context, flags, packet, packets, properties, error), bytes, error);
}

static void *CL_API_CALL svm_alloc(cl_context context, cl_svm_mem_flags flags, size_t bytes, cl_uint alignment)
{
  struct svm *noted = malloc(sizeof *noted);
  if (noted == NULL)
    return NULL;
  if (!take(bytes)) {
    free(noted);
    return NULL;
  }
  void *start = next->clSVMAlloc(context, flags, bytes, alignment);
  if (start == NULL) {
    give_back(bytes);
    free(noted);
    return NULL;
  }
  pthread_mutex_lock(&lock);
  *noted = (struct svm){start, bytes, svms};
  svms = noted;
  pthread_mutex_unlock(&lock);
  return start;
}

static void svm_gone(void *start)
{
  pthread_mutex_lock(&lock);
  struct svm **at = &svms;
  while (*at != NULL && (*at)->start != start)
    at = &(*at)->next;
  struct svm *found = *at;
  if (found != NULL)
    *at = found->next;
  pthread_mutex_unlock(&lock);
  if (found != NULL)
    give_back(found->bytes);
  free(found);
}

static void CL_API_CALL svm_free(cl_context context, void *start)
{
  /* Before, as another thread may be given that address at once. */
  svm_gone(start);
  next->clSVMFree(context, start);
}

/* Not needed by the server, and the time of its freeing is the device's: none goes uncounted. */
static cl_int CL_API_CALL enqueue_svm_free(cl_command_queue queue, cl_uint pointers, void *starts[],
                                           void(CL_CALLBACK *frees)(cl_command_queue, cl_uint, void *[], void *),
                                           void *data, cl_uint events, const cl_event *wait, cl_event *event)
{
  (void)queue, (void)pointers, (void)starts, (void)frees, (void)data, (void)events, (void)wait, (void)event;
  return CL_INVALID_OPERATION;
}

static void CL_CALLBACK kernel_ended(cl_event event, cl_int status, void *data)
{
  (void)event, (void)status, (void)data;
  pthread_mutex_lock(&lock);
  if (--kernels == 0) {
    seen->busy_ns += now_ns() - seen->since_ns;
    seen->since_ns = 0;
  }
  pthread_mutex_unlock(&lock);
}

static cl_int CL_API_CALL enqueue_kernel(cl_command_queue queue, cl_kernel kernel, cl_uint dimensions,
                                         const size_t *offset, const size_t *global, const size_t *local,
                                         cl_uint events, const cl_event *wait, cl_event *event)
{
  cl_event own = NULL, *at = event != NULL ? event : &own;
  pthread_mutex_lock(&lock);
  if (kernels++ == 0)
    seen->since_ns = now_ns();
  pthread_mutex_unlock(&lock);
  cl_int error = next->clEnqueueNDRangeKernel(queue, kernel, dimensions, offset, global, local, events, wait, at);
  if (error != CL_SUCCESS || next->clSetEventCallback(*at, CL_COMPLETE, kernel_ended, NULL) != CL_SUCCESS)
    kernel_ended(NULL, 0, NULL);
  if (own != NULL)
    next->clReleaseEvent(own);
  return error;
}

/* A device is as large as the slice. */
static cl_int CL_API_CALL device_info(cl_device_id device, cl_device_info name, size_t size, void *value, size_t *needed)
{
  cl_int error = next->clGetDeviceInfo(device, name, size, value, needed);
  if (error == CL_SUCCESS && value != NULL && size >= sizeof(cl_ulong)
      && (name == CL_DEVICE_GLOBAL_MEM_SIZE || name == CL_DEVICE_MAX_MEM_ALLOC_SIZE)) {
    cl_ulong *bytes = value;
    if (*bytes > seen->limit)
      *bytes = seen->limit;
  }
  return error;
}

/* Functions of extensions allocate, too (unified shared memory): the server uses none, and gets none. */
static void *CL_API_CALL extension(cl_platform_id platform, const char *name)
{
  (void)platform, (void)name;
  return NULL;
}

static int number(const char *variable, uint64_t *found)
{
  const char *text = getenv(variable);
  char *end;
  if (text == NULL || *text < '0' || *text > '9')
    return 0;
  errno = 0;
  *found = strtoull(text, &end, 10);
  return errno == 0 && *end == '\0';
}

static void share_counters(void)
{
  const char *file = getenv("NUMA_EXT_SLICE_FILE");
  int opened = file == NULL ? -1 : open(file, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (opened < 0)
    return;
  void *mapped = MAP_FAILED;
  if (ftruncate(opened, sizeof(struct counters)) == 0)
    mapped = mmap(NULL, sizeof(struct counters), PROT_READ | PROT_WRITE, MAP_SHARED, opened, 0);
  close(opened);
  if (mapped != MAP_FAILED)
    seen = mapped;
}

static cl_int answer(const void *content, size_t bytes, size_t size, void *value, size_t *needed)
{
  if (value != NULL && size < bytes)
    return CL_INVALID_VALUE;
  if (value != NULL)
    memcpy(value, content, bytes);
  if (needed != NULL)
    *needed = bytes;
  return CL_SUCCESS;
}

CL_API_ENTRY cl_int CL_API_CALL clGetLayerInfo(cl_layer_info name, size_t size, void *value, size_t *needed)
{
  static const cl_layer_api_version version = CL_LAYER_API_VERSION_100;
  static const char own[] = "numa_ext_slice";
  if (name == CL_LAYER_API_VERSION)
    return answer(&version, sizeof version, size, value, needed);
  if (name == CL_LAYER_NAME)
    return answer(own, sizeof own, size, value, needed);
  return CL_INVALID_VALUE;
}

CL_API_ENTRY cl_int CL_API_CALL clInitLayer(cl_uint entries, const cl_icd_dispatch *target, cl_uint *count,
                                            const cl_icd_dispatch **layer)
{
  uint64_t limit, given;
  if (target == NULL || count == NULL || layer == NULL || entries < sizeof ours / sizeof(void *))
    return CL_INVALID_VALUE;
  /* Where the loader cannot use a layer it goes on without: the server must not. */
  if (!number("NUMA_EXT_SLICE_BYTES", &limit)) {
    fputs("numa_ext_slice: NUMA_EXT_SLICE_BYTES is no number\n", stderr);
    _exit(1);
  }
  if (number("NUMA_EXT_SLICE_OBJECTS", &given))
    most_objects = given;
  share_counters();
  *seen = (struct counters){.magic = MAGIC, .limit = limit};
  next = target;
  ours.clCreateBuffer = create_buffer;
  ours.clCreateBufferWithProperties = create_buffer_with;
  ours.clCreateImage = create_image;
  ours.clCreateImageWithProperties = create_image_with;
  ours.clCreateImage2D = create_image_2d;
  ours.clCreateImage3D = create_image_3d;
  ours.clCreatePipe = create_pipe;
  ours.clSVMAlloc = svm_alloc;
  ours.clSVMFree = svm_free;
  ours.clEnqueueSVMFree = enqueue_svm_free;
  ours.clEnqueueNDRangeKernel = enqueue_kernel;
  ours.clGetDeviceInfo = device_info;
  ours.clGetExtensionFunctionAddress = NULL;
  ours.clGetExtensionFunctionAddressForPlatform = extension;
  *layer = &ours;
  *count = sizeof ours / sizeof(void *);
  return CL_SUCCESS;
}
