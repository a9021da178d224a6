-- Made by `gandiva config slurm` from the description of cluster hpc: edit that, not this.
return {
   version = 1,
   default = "off",
   trusted_users = { "slurm", "gandiva" },
   partitions = { "gpu" },
   max_weight = 4.0,
   max_weight_by_account = {},
   max_weight_by_qos = {},
   models = { "a100", "h100" },
   aliases = {},
   shard_types = {},
   nodes = {
      gpu = {
         { model = "a100", gpus = 4, count = 8 },
         { model = "h100", gpus = 8, count = 2 },
      },
      cpu = { { model = "", gpus = 0, count = 100 } },
   },
}
