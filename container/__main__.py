# SPDX-License-Identifier: GPL-2.0-or-later
"""`python -m container` is `gandiva-cluster`."""

import sys

from container.cli import main

sys.exit(main())
