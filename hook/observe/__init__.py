"""What people and Prometheus see: a look that takes no lock and changes nothing, as text, JSON and metrics."""
