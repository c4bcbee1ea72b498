"""What an application uses; each part written once for both faces."""
