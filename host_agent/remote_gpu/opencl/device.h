/* SPDX-License-Identifier: Apache-2.0
 *
 * Devices of OpenCL, for programs that end at the first error or wrong number.
 */
#ifndef NUMA_EXT_DEVICE_H
#define NUMA_EXT_DEVICE_H

#define CL_TARGET_OPENCL_VERSION 120
#include <CL/cl.h>
#include <stddef.h>
#include <stdint.h>

/* How programs end. */
enum { RIGHT, FAILED, USAGE, WRONG };

#define DEVICES 16

/* Seconds of a clock that only goes on. */
double now_s(void);

/* End with FAILED where OpenCL says that something failed. */
void must(cl_int error, const char *what);

/* End with WRONG: a number is another one than it has to be. */
void wrong(const char *what, size_t at, uint64_t found, uint64_t expected);

/* Memory of this process; its end without. */
void *memory(size_t bytes);

/* Find the devices, DEVICES at most, of the first platform that has some; return how many. */
cl_uint find_devices(cl_device_id *found);

void open_context(cl_device_id device, cl_context *opened, cl_command_queue *commands);
cl_program built(cl_context opened, cl_device_id device, const char **text, const char *options);
cl_kernel kernel_of(cl_program program, const char *name);
cl_mem buffer_in(cl_context opened, size_t bytes);

#endif
