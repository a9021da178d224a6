/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef MOCKGPU_COMMAND_H
#define MOCKGPU_COMMAND_H

#include "state.h"

/* Prints the message and ends the program with status 2. */
__attribute__((noreturn, format(printf, 1, 2))) void fail(const char *format, ...);
void json_string(const char *text);

int history_command(int argc, char **argv);
int overlaps_command(int argc, char **argv);

#endif
