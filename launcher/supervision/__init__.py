"""Services kept running: started, watched, restarted and drained."""
