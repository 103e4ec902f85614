"""The loop and its helpers; imports the core only, so it cannot know one algorithm from another."""
