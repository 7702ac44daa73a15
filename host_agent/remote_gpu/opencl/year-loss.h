/* SPDX-License-Identifier: Apache-2.0 */
#ifndef NUMA_EXT_YEAR_LOSS_H
#define NUMA_EXT_YEAR_LOSS_H

#include <stdint.h>

#define LEAST_TRIALS 4
#define MOST_TRIALS 10000000

/* Compute a year-loss table in 1, 2 and 4 parts on all devices, compare each, and print a line for each. */
void compare_year_losses(uint32_t trials);

#endif
