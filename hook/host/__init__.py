"""What this machine has and how its runtimes are set up: hooks.d, configurations, containers that run. Reads only."""
