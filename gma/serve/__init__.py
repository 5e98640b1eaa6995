"""A server for many speakers and readers at once: WebSockets in, one model thread, one batch."""
