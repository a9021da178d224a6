# SPDX-License-Identifier: MIT
"""Ways to take a process's state off the GPU, and (later) to keep it on the parallel file system."""
