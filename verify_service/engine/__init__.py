"""The one thread that receives, schedules, drafts, verifies and commits."""
