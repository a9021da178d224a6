# SPDX-License-Identifier: GPL-2.0-or-later
"""`gandiva top`: what it draws (`frame`) and how it gets there (`screen`)."""

KEYS = """\
  up down  j k          choose a job; above the first one, scroll
  PgUp PgDn  Home End   the same, faster
  Enter                 all about the job: why it waits, its output
  /                     jobs with this text only; Enter keeps it, Esc drops it
  s  .  ,               sort by the next column, by the one before
  r                     reverse the order
  t                     jobs user by user
  u                     your own jobs only (or those of -u), or all
  c                     GPUs one by one, or a line per node
  p  space              pause, go on
  + -                   longer interval, shorter interval
  ?  h                  help
  q  Ctrl-C             quit; back from this page and from a job"""
