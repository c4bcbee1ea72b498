"""The embedded server: a Valkey for one project, started where no address is configured."""
