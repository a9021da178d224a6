# SPDX-License-Identifier: GPL-2.0-or-later
"""A HyperQueue server with one worker: `PYTHON hyperqueue_tasks.py FOLDER SLOTS`.

Each line of standard input is the command of a task, a list of words in JSON. Tasks start in this order, as
many at a time as there are slots, and the one in slot N (a core, to HyperQueue) has CUDA_VISIBLE_DEVICES=N.
"""

import json
import sys

from hyperqueue import Client, Job, LocalCluster  # type: ignore[import-not-found]
from hyperqueue.cluster import WorkerConfig  # type: ignore[import-not-found]

SHELL = 'CUDA_VISIBLE_DEVICES=$HQ_CPUS exec "$@"'


def submit(client: Client, number: int, words: list[str]) -> object:
    job = Job()
    output = f"{sys.argv[1]}/task-{number}.out"
    job.program(["sh", "-c", SHELL, "sh", *words], stdout=output, stderr=output)
    return client.submit(job)


with LocalCluster(sys.argv[1], WorkerConfig(cores=int(sys.argv[2]))) as cluster:
    client = cluster.client()
    print("ready", flush=True)
    jobs = [submit(client, number, json.loads(line)) for number, line in enumerate(sys.stdin)]
    client.wait_for_jobs(jobs, raise_on_error=False)
