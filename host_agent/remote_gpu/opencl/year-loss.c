/* SPDX-License-Identifier: Apache-2.0
 *
 * Aggregate risk analysis (Prades 2021, section 4.4): what years cost a layer of insurance. A trial is a year, as the
 * events that happen in it; LISTS say what each event costs. All amounts are whole numbers, so that a table is right to
 * the last unit or wrong. Times of events are left out: nothing in the algorithms reads them.
 *
 *   list's terms, of each loss          min(max(loss - retained, 0), limit) * share / 1000
 *   occurrence, then aggregate terms    min(max(sum - retained, 0), limit), both of the sum of a trial, as printed there
 */
#include "year-loss.h"
#include "device.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EVENTS 20000 /* that can happen */
#define LISTS 8
#define MOST_OF_A_YEAR 100
#define MOST_PARTS LEAST_TRIALS /* none is empty */

struct cost {
  uint32_t event, loss;
};

struct terms {
  uint64_t retained, limit, share;
};

struct portfolio {
  uint32_t trials, *begins, *events; /* events[begins[i]] to events[begins[i + 1]] are those of trial i */
  struct cost *costs[LISTS];         /* in the order of events */
  uint32_t counts[LISTS];
  struct terms terms[LISTS];
};

static const struct terms occurrence = {20000000, 10000000, 0}, aggregate = {2000000, 6000000, 0};

/* Algorithm 3, a trial for each thread; lists are direct-access tables. */
static const char *risk_source =
    "ulong within(ulong loss, ulong retained, ulong limit) { return min(loss > retained ? loss - retained : 0, limit); }\n"
    "__kernel void year_loss(__global const uint *begins, __global const uint *events, __global const uint *losses,\n"
    "                        __constant const ulong *terms, ulong4 layer, __global ulong *years)\n"
    "{\n"
    "  size_t trial = get_global_id(0);\n"
    "  ulong sum = 0;\n"
    "  for (uint i = begins[trial] - begins[0]; i < begins[trial + 1] - begins[0]; i++)\n"
    "    for (uint list = 0; list < LISTS; list++) {\n"
    "      __constant const ulong *own = terms + 3 * list;\n"
    "      sum += within(losses[list * EVENTS + events[i]], own[0], own[1]) * own[2] / 1000;\n"
    "    }\n"
    "  years[trial] = within(within(sum, layer.s0, layer.s1), layer.s2, layer.s3);\n"
    "}\n";

static uint32_t drawn(uint32_t *state, uint32_t below)
{
  *state = *state * 1664525u + 1013904223u;
  return (*state >> 8) % below;
}

/* The same one for each number of trials; longer ones begin as shorter ones do. */
static struct portfolio drawn_portfolio(uint32_t trials)
{
  struct portfolio made = {.trials = trials};
  uint32_t state = 2021;
  for (uint32_t list = 0; list < LISTS; list++) {
    made.costs[list] = memory(EVENTS * sizeof **made.costs);
    made.terms[list] = (struct terms){20000 * (list + 1), 600000, 300 + 50 * list};
    for (uint32_t event = 0; event < EVENTS; event++)
      if (drawn(&state, 4) == 0)
        made.costs[list][made.counts[list]++] = (struct cost){event, drawn(&state, 1000000)};
  }
  made.begins = memory((trials + 1) * sizeof *made.begins);
  made.events = memory((size_t)trials * MOST_OF_A_YEAR * sizeof *made.events);
  made.begins[0] = 0;
  for (uint32_t trial = 0; trial < trials; trial++) {
    uint32_t count = MOST_OF_A_YEAR / 2 + drawn(&state, MOST_OF_A_YEAR / 2 + 1);
    made.begins[trial + 1] = made.begins[trial] + count;
    for (uint32_t i = made.begins[trial]; i < made.begins[trial + 1]; i++)
      made.events[i] = drawn(&state, EVENTS);
  }
  return made;
}

static int by_event(const void *event, const void *cost)
{
  uint32_t one = *(const uint32_t *)event, other = ((const struct cost *)cost)->event;
  return one < other ? -1 : one > other;
}

static uint64_t less(uint64_t loss, struct terms terms)
{
  uint64_t left = loss < terms.retained ? 0 : loss - terms.retained;
  return left < terms.limit ? left : terms.limit;
}

/* What the table has to be: without a device, and without the tables that devices have, list by list. */
static void expected_years(const struct portfolio *of, uint64_t *years)
{
  for (uint32_t trial = 0; trial < of->trials; trial++) {
    uint64_t sum = 0;
    for (uint32_t list = 0; list < LISTS; list++)
      for (uint32_t i = of->begins[trial]; i < of->begins[trial + 1]; i++) {
        const struct cost *cost =
            bsearch(&of->events[i], of->costs[list], of->counts[list], sizeof *cost, by_event);
        if (cost != NULL)
          sum += less(cost->loss, of->terms[list]) * of->terms[list].share / 1000;
      }
    years[trial] = less(less(sum, occurrence), aggregate);
  }
}

struct lane {
  cl_context context;
  cl_command_queue queue;
  cl_program program;
};

/* A part of the trials on a device: what it computes comes later. */
struct part {
  uint32_t first, count;
  const struct lane *lane;
  cl_kernel kernel;
  cl_mem buffers[5]; /* as the kernel's arguments: begins, events, losses, terms; the last is the table's part */
};

/* Algorithm 2, and the kernel's start: all is on its way to the device when it returns. */
static void start(struct part *part, const struct portfolio *of, const uint32_t *losses)
{
  uint32_t begin = of->begins[part->first], end = of->begins[part->first + part->count];
  const struct {
    const void *content;
    size_t bytes;
  } given[] = {{of->begins + part->first, (part->count + 1) * sizeof *of->begins},
               {of->events + begin, (end - begin) * sizeof *of->events},
               {losses, (size_t)LISTS * EVENTS * sizeof *losses},
               {of->terms, sizeof of->terms}};
  cl_ulong4 layer = {{occurrence.retained, occurrence.limit, aggregate.retained, aggregate.limit}};
  size_t items = part->count;
  cl_command_queue commands = part->lane->queue;
  part->kernel = kernel_of(part->lane->program, "year_loss");
  for (cl_uint i = 0; i < 4; i++) {
    part->buffers[i] = buffer_in(part->lane->context, given[i].bytes);
    must(clEnqueueWriteBuffer(commands, part->buffers[i], CL_FALSE, 0, given[i].bytes, given[i].content, 0, NULL, NULL),
         "writing");
    must(clSetKernelArg(part->kernel, i, sizeof *part->buffers, &part->buffers[i]), "an argument");
  }
  part->buffers[4] = buffer_in(part->lane->context, items * sizeof(cl_ulong));
  must(clSetKernelArg(part->kernel, 4, sizeof layer, &layer), "an argument");
  must(clSetKernelArg(part->kernel, 5, sizeof *part->buffers, &part->buffers[4]), "an argument");
  must(clEnqueueNDRangeKernel(commands, part->kernel, 1, NULL, &items, NULL, 0, NULL, NULL), "a kernel's start");
  must(clFlush(commands), "a kernel's start");
}

static void finish(struct part *part, uint64_t *years)
{
  size_t bytes = part->count * sizeof *years;
  must(clEnqueueReadBuffer(part->lane->queue, part->buffers[4], CL_TRUE, 0, bytes, years + part->first, 0, NULL, NULL),
       "reading");
  for (int i = 0; i < 5; i++)
    must(clReleaseMemObject(part->buffers[i]), "giving a buffer back");
  must(clReleaseKernel(part->kernel), "giving a kernel back");
}

/* Algorithm 1: the trials in parts, one after the other to the devices; the table is their union. */
static void year_losses(const struct portfolio *of, const uint32_t *losses, const struct lane *lanes, cl_uint devices,
                        uint32_t count, uint64_t *years)
{
  struct part parts[MOST_PARTS];
  for (uint32_t i = 0; i < count; i++) {
    uint32_t first = (uint32_t)((uint64_t)of->trials * i / count);
    uint32_t next = (uint32_t)((uint64_t)of->trials * (i + 1) / count);
    parts[i] = (struct part){.first = first, .count = next - first, .lane = &lanes[i % devices]};
    start(&parts[i], of, losses);
  }
  for (uint32_t i = 0; i < count; i++)
    finish(&parts[i], years);
}

void compare_year_losses(uint32_t trials)
{
  cl_device_id found[DEVICES];
  struct lane lanes[MOST_PARTS];
  char options[64];
  cl_uint devices = find_devices(found);
  if (devices > MOST_PARTS)
    devices = MOST_PARTS;
  snprintf(options, sizeof options, "-DLISTS=%d -DEVENTS=%d", LISTS, EVENTS);
  for (cl_uint i = 0; i < devices; i++) {
    open_context(found[i], &lanes[i].context, &lanes[i].queue);
    lanes[i].program = built(lanes[i].context, found[i], &risk_source, options);
  }
  struct portfolio portfolio = drawn_portfolio(trials);
  uint32_t *losses = memory((size_t)LISTS * EVENTS * sizeof *losses);
  uint64_t *expected = memory(trials * sizeof *expected), *years = memory(trials * sizeof *years);
  memset(losses, 0, (size_t)LISTS * EVENTS * sizeof *losses);
  for (uint32_t list = 0; list < LISTS; list++)
    for (uint32_t i = 0; i < portfolio.counts[list]; i++)
      losses[list * EVENTS + portfolio.costs[list][i].event] = portfolio.costs[list][i].loss;
  expected_years(&portfolio, expected);
  for (uint32_t parts = 1; parts <= MOST_PARTS; parts *= 2) {
    uint64_t sum = 0;
    memset(years, 255, trials * sizeof *years);
    double begun = now_s();
    year_losses(&portfolio, losses, lanes, devices, parts, years);
    double took = now_s() - begun;
    for (uint32_t i = 0; i < trials; i++) {
      if (years[i] != expected[i])
        wrong("loss of a trial", i, years[i], expected[i]);
      sum += years[i];
    }
    printf("{\"parts\": %" PRIu32 ", \"devices\": %" PRIu32 ", \"trials\": %" PRIu32 ", \"loss\": %" PRIu64
           ", \"took_s\": %.6f}\n",
           parts, devices < parts ? devices : parts, trials, sum, took);
  }
}
