"""What is remembered between acting and learning."""
