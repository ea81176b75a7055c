"""From prompts to a drafter in service, stage by stage, and how the demonstration models are made."""
