"""What is in force in this process and on this thread. It must not know who puts it in force."""
