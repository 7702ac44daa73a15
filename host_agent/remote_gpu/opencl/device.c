/* SPDX-License-Identifier: Apache-2.0 */
#include "device.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

double now_s(void)
{
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

void must(cl_int error, const char *what)
{
  if (error == CL_SUCCESS)
    return;
  fflush(stdout);
  fprintf(stderr, "numa-rgpu-bench: %s: OpenCL error %d\n", what, error);
  /* Without the library's own clean-up, which could wait for a device that is gone. */
  _exit(FAILED);
}

void wrong(const char *what, size_t at, uint64_t found, uint64_t expected)
{
  fflush(stdout);
  fprintf(stderr, "numa-rgpu-bench: WRONG %s at %zu: %" PRIu64 ", expected %" PRIu64 "\n", what, at, found, expected);
  _exit(WRONG);
}

void *memory(size_t bytes)
{
  void *made = malloc(bytes);
  must(made ? CL_SUCCESS : CL_OUT_OF_HOST_MEMORY, "memory");
  return made;
}

cl_uint find_devices(cl_device_id *found)
{
  cl_platform_id platforms[8];
  cl_uint count = 0, devices = 0;
  must(clGetPlatformIDs(8, platforms, &count), "no OpenCL platform");
  for (cl_uint i = 0; i < count && i < 8 && devices == 0; i++)
    if (clGetDeviceIDs(platforms[i], CL_DEVICE_TYPE_ALL, DEVICES, found, &devices) != CL_SUCCESS)
      devices = 0;
  must(devices ? CL_SUCCESS : CL_DEVICE_NOT_FOUND, "no OpenCL device");
  return devices < DEVICES ? devices : DEVICES;
}

void open_context(cl_device_id device, cl_context *opened, cl_command_queue *commands)
{
  cl_int error;
  *opened = clCreateContext(NULL, 1, &device, NULL, NULL, &error);
  must(error, "a context");
  *commands = clCreateCommandQueue(*opened, device, 0, &error);
  must(error, "a queue");
}

cl_program built(cl_context opened, cl_device_id device, const char **text, const char *options)
{
  cl_int error;
  cl_program program = clCreateProgramWithSource(opened, 1, text, NULL, &error);
  must(error, "a program");
  must(clBuildProgram(program, 1, &device, options, NULL, NULL), "building a program");
  return program;
}

cl_kernel kernel_of(cl_program program, const char *name)
{
  cl_int error;
  cl_kernel made = clCreateKernel(program, name, &error);
  must(error, "a kernel");
  return made;
}

cl_mem buffer_in(cl_context opened, size_t bytes)
{
  cl_int error;
  cl_mem made = clCreateBuffer(opened, CL_MEM_READ_WRITE, bytes, NULL, &error);
  must(error, "a buffer");
  return made;
}
