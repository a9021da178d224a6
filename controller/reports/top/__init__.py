# SPDX-License-Identifier: GPL-2.0-or-later
"""`gandiva top`: what it draws (`frame`) and how it gets there (`screen`)."""
