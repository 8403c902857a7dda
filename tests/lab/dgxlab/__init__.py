"""Build, reset and remove the lab: simulated DGX Spark hosts as containers of the local Docker Engine."""
