"""What people would use instead, each as a script of its own: `python -m benchmarks.peers.X JOB`.

```
 JOB.json ──> halves | threads | ray_data | server | ours ──> a JSON line per moment, on stdout
```

All take the same job (see `job`) and tell the same moments; who started the script takes the
time at which their lines arrive, so that nobody's imports are left out. `ours` is this package in
a script that is as short.
"""
