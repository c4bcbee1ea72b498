"""What can be measured: one module a topic, each with its `TOPIC`."""
