"""What tests share: a raw client, and the real command run as a process."""
