# SPDX-License-Identifier: MIT
"""Ways to take a process's state off the GPU, and to keep a job's state on the parallel file system."""
