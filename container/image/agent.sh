#!/bin/bash
# Forced command of the controller's key. Where several nodes share a container, the mock GPUs are told by
# SLURMD_NODENAME which node is meant; on real hardware a node has its own GPUs.
node=${SSH_ORIGINAL_COMMAND##* }
[ ! -d "/var/lib/mockgpu/$node" ] || export SLURMD_NODENAME=$node
exec /usr/bin/gandiva-agent
