"""For operators: inspecting what a server holds, checking its health, and acting on queues and jobs."""
