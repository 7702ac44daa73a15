/* SPDX-License-Identifier: Apache-2.0
 *
 * numa-rgpu-bench: computes on an OpenCL device and checks every number that comes back.
 *
 * It is run in a server that has a lease of a remote GPU, where it shows that the GPU is reached, that its results are
 * right, and what a round trip and bytes cost. Any other OpenCL device does as well.
 */
#include "device.h"
#include "year-loss.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)
#define LARGEST (16 * MIB)
#define MOST (64 * MIB)
#define ROUNDS 200
#define COPIES 12
#define LOOKED_AT 1024

static const char *source = "__kernel void empty(__global uint *x) { }\n"
                            "__kernel void advance(__global uint *x, uint a, uint b)\n"
                            "{ size_t i = get_global_id(0); x[i] = x[i] * a + b; }\n";

static cl_context context;
static cl_command_queue queue;
static cl_kernel empty_kernel, advance_kernel;

static void open_device(char *name, size_t size)
{
  cl_device_id devices[DEVICES];
  find_devices(devices);
  must(clGetDeviceInfo(devices[0], CL_DEVICE_NAME, size, name, NULL), "its name");
  open_context(devices[0], &context, &queue);
  cl_program program = built(context, devices[0], &source, "");
  empty_kernel = kernel_of(program, "empty");
  advance_kernel = kernel_of(program, "advance");
}

static cl_mem buffer(size_t bytes)
{
  return buffer_in(context, bytes);
}

/* Figures: the median round trip, and the best of some copies, each of which is compared. */
static double trip_us(void)
{
  static double took[ROUNDS];
  cl_mem one = buffer(4);
  size_t items = 1;
  must(clSetKernelArg(empty_kernel, 0, sizeof one, &one), "an argument");
  for (int i = -1; i < ROUNDS; i++) {
    double begun = now_s();
    must(clEnqueueNDRangeKernel(queue, empty_kernel, 1, NULL, &items, NULL, 0, NULL, NULL), "a kernel's start");
    must(clFinish(queue), "a kernel's end");
    if (i >= 0)
      took[i] = now_s() - begun;
  }
  must(clReleaseMemObject(one), "giving a buffer back");
  for (int i = 1; i < ROUNDS; i++)
    for (int j = i; j > 0 && took[j] < took[j - 1]; j--) {
      double swapped = took[j];
      took[j] = took[j - 1], took[j - 1] = swapped;
    }
  return took[ROUNDS / 2] * 1e6;
}

static void copies(size_t bytes, double *write_mb_s, double *read_mb_s)
{
  unsigned char *sent = malloc(bytes), *got = malloc(bytes);
  cl_mem device = buffer(bytes);
  double write_s = 1e9, read_s = 1e9;
  must(sent && got ? CL_SUCCESS : CL_OUT_OF_HOST_MEMORY, "memory");
  for (size_t i = 0; i < bytes; i++)
    sent[i] = (unsigned char)((uint32_t)i * 2654435761u >> 24);
  for (int round = 0; round < COPIES; round++) {
    sent[0] = (unsigned char)round;
    memset(got, 255, bytes);
    double begun = now_s();
    must(clEnqueueWriteBuffer(queue, device, CL_TRUE, 0, bytes, sent, 0, NULL, NULL), "writing");
    double written = now_s();
    must(clEnqueueReadBuffer(queue, device, CL_TRUE, 0, bytes, got, 0, NULL, NULL), "reading");
    double read = now_s();
    if (written - begun < write_s)
      write_s = written - begun;
    if (read - written < read_s)
      read_s = read - written;
    if (memcmp(sent, got, bytes) != 0)
      wrong("copy", (size_t)round, got[0], sent[0]);
  }
  must(clReleaseMemObject(device), "giving a buffer back");
  free(sent), free(got);
  *write_mb_s = (double)bytes / write_s / 1e6;
  *read_mb_s = (double)bytes / read_s / 1e6;
}

/* From what costs a round trip to what costs its bytes. */
static void sizes(void)
{
  for (size_t bytes = 2; bytes <= MOST; bytes *= 8) {
    double write, read;
    copies(bytes, &write, &read);
    printf("{\"bytes\": %zu, \"write_mb_s\": %.4f, \"read_mb_s\": %.4f}\n", bytes, write, read);
  }
}

static void figures(const char *name)
{
  double write_1, read_1, write_16, read_16, trip = trip_us();
  copies(MIB, &write_1, &read_1);
  copies(LARGEST, &write_16, &read_16);
  printf("{\"device\": \"%s\", \"latency_us\": %.2f, \"write_1mib\": %.1f, \"read_1mib\": %.1f, \"write_16mib\": %.1f, "
         "\"read_16mib\": %.1f}\n",
         name, trip, write_1, read_1, write_16, read_16);
}

/* Copies there and back for a while, each compared, from when a line comes by standard input: with several of them at
 * once, what they reach together. */
static void copy_for(double seconds)
{
  char *sent = malloc(LARGEST), *got = malloc(LARGEST);
  cl_mem device = buffer(LARGEST);
  unsigned long rounds = 0;
  must(sent && got ? CL_SUCCESS : CL_OUT_OF_HOST_MEMORY, "memory");
  for (size_t i = 0; i < LARGEST; i++)
    sent[i] = (char)(i * 2654435761u >> 13);
  puts("ready");
  fflush(stdout);
  while (getchar() != '\n' && !feof(stdin))
    ;
  double begun = now_s(), until = begun + seconds;
  do {
    memcpy(sent, &rounds, sizeof rounds);
    must(clEnqueueWriteBuffer(queue, device, CL_TRUE, 0, LARGEST, sent, 0, NULL, NULL), "writing");
    must(clEnqueueReadBuffer(queue, device, CL_TRUE, 0, LARGEST, got, 0, NULL, NULL), "reading");
    if (memcmp(sent, got, LARGEST) != 0)
      wrong("copy", rounds, 0, 0);
    rounds++;
  } while (now_s() < until);
  printf("{\"copies\": %lu, \"mb_s\": %.1f}\n", rounds, 2e-6 * (double)LARGEST * (double)rounds / (now_s() - begun));
}

/* A computation whose state lies on the device: a step that is lost, or done twice, makes all later numbers wrong. */
static void work(double seconds, size_t bytes)
{
  uint32_t a = 1664525, b = 1013904223, *host = malloc(bytes), expected[LOOKED_AT], got[LOOKED_AT];
  size_t items = bytes / 4, looked_at = items < LOOKED_AT ? items : LOOKED_AT;
  cl_mem device = buffer(bytes);
  must(host ? CL_SUCCESS : CL_OUT_OF_HOST_MEMORY, "memory");
  for (size_t i = 0; i < items; i++)
    host[i] = (uint32_t)(i % LOOKED_AT);
  memcpy(expected, host, looked_at * 4);
  must(clEnqueueWriteBuffer(queue, device, CL_TRUE, 0, bytes, host, 0, NULL, NULL), "writing");
  must(clSetKernelArg(advance_kernel, 0, sizeof device, &device), "an argument");
  must(clSetKernelArg(advance_kernel, 1, 4, &a), "an argument");
  must(clSetKernelArg(advance_kernel, 2, 4, &b), "an argument");
  double until = now_s() + seconds, worst = 0;
  unsigned long rounds = 0;
  do {
    double begun = now_s();
    must(clEnqueueNDRangeKernel(queue, advance_kernel, 1, NULL, &items, NULL, 0, NULL, NULL), "a kernel's start");
    must(clEnqueueReadBuffer(queue, device, CL_TRUE, 0, looked_at * 4, got, 0, NULL, NULL), "reading");
    double took = now_s() - begun;
    for (size_t i = 0; i < looked_at; i++) {
      expected[i] = expected[i] * a + b;
      if (got[i] != expected[i])
        wrong("round", rounds, got[i], expected[i]);
    }
    if (rounds > 0 && took > worst) /* the device makes its own code in the first */
      worst = took;
    if (rounds++ == 0) {
      puts("working");
      fflush(stdout);
    }
  } while (now_s() < until);
  must(clEnqueueReadBuffer(queue, device, CL_TRUE, 0, bytes, host, 0, NULL, NULL), "reading");
  for (size_t i = 0; i < items; i++)
    if (host[i] != expected[i % LOOKED_AT])
      wrong("end", i, host[i], expected[i % LOOKED_AT]);
  must(clReleaseMemObject(device), "giving a buffer back");
  printf("{\"rounds\": %lu, \"worst_s\": %.6f}\n", rounds, worst);
}

static uint8_t mark_of(unsigned long number)
{
  return (uint8_t)(number * 2654435761u >> 13);
}

/* How many buffers of a size the device gives, each written to, as devices may give memory at its first use. After the
 * seconds for which they are held each is compared: of so many, that none is lost or another one's. */
static void take(size_t bytes, unsigned long count, double seconds)
{
  unsigned long taken = 0;
  cl_int error = CL_SUCCESS;
  cl_mem *made = calloc(count, sizeof *made);
  must(made ? CL_SUCCESS : CL_OUT_OF_HOST_MEMORY, "memory");
  while (taken < count) {
    uint8_t mark = mark_of(taken);
    made[taken] = clCreateBuffer(context, CL_MEM_READ_WRITE, bytes, NULL, &error);
    if (error == CL_SUCCESS)
      error = clEnqueueWriteBuffer(queue, made[taken], CL_TRUE, bytes - 1, 1, &mark, 0, NULL, NULL);
    if (error != CL_SUCCESS)
      break;
    taken++;
  }
  printf("{\"taken\": %lu, \"error\": %d}\n", taken, error);
  fflush(stdout);
  usleep((useconds_t)(seconds * 1e6));
  for (unsigned long i = 0; seconds > 0 && i < taken; i++) {
    uint8_t got = (uint8_t)~mark_of(i);
    must(clEnqueueReadBuffer(queue, made[i], CL_TRUE, bytes - 1, 1, &got, 0, NULL, NULL), "reading");
    if (got != mark_of(i))
      wrong("buffer", i, got, mark_of(i));
  }
  /* Nothing is given back: that is the server's to do. */
  _exit(RIGHT);
}

static int usage(void)
{
  fputs("usage: numa-rgpu-bench [-s] [-c SECONDS] [-t SECONDS] [-m MIB] [-a BYTES -n COUNT] [-y TRIALS]\n"
        "  without options: a round trip and copies, each compared\n"
        "  -s: copies of 2 bytes to 32 MiB, a line each\n"
        "  -c: copies of 16 MiB there and back for so many seconds, from when a line comes by standard input\n"
        "  -t, -m: a computation of so many seconds on so many MiB (4), compared in each round\n"
        "  -a, -n: how many of so many buffers of so many bytes the device gives; they are held for -t SECONDS,\n"
        "    and compared then\n"
        "  -y: a year-loss table of so many trials (4 or more), in 1, 2 and 4 parts on all devices, each compared\n",
        stderr);
  return USAGE;
}

int main(int count, char **words)
{
  double seconds = 0, copying = 0;
  int all_sizes = 0;
  unsigned long mib = 4, bytes = 0, buffers = 0, trials = 0;
  char name[256], *end = "";
  for (int option; (option = getopt(count, words, "sc:t:m:a:n:y:")) != -1 && *end == '\0';) {
    if (option == 's')
      all_sizes = 1;
    else if (option == 'c')
      copying = strtod(optarg, &end);
    else if (option == 't')
      seconds = strtod(optarg, &end);
    else if (option == 'm')
      mib = strtoul(optarg, &end, 10);
    else if (option == 'a')
      bytes = strtoul(optarg, &end, 10);
    else if (option == 'n')
      buffers = strtoul(optarg, &end, 10);
    else if (option == 'y' && ((trials = strtoul(optarg, &end, 10)) < LEAST_TRIALS || trials > MOST_TRIALS))
      return usage();
    else if (option != 'y')
      return usage();
  }
  if (*end != '\0' || optind != count || mib == 0 || (bytes == 0) != (buffers == 0))
    return usage();
  if (trials != 0) {
    compare_year_losses((uint32_t)trials);
    return RIGHT;
  }
  open_device(name, sizeof name);
  if (buffers != 0)
    take(bytes, buffers, seconds);
  else if (all_sizes)
    sizes();
  else if (copying > 0)
    copy_for(copying);
  else if (seconds > 0)
    work(seconds, mib * MIB);
  else
    figures(name);
  return RIGHT;
}
