"""Load on a broker or a gateway, from a process that is not itself the bottleneck."""
