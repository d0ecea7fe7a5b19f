import signal

# A job in the background ignores these, and what it starts would too; here they are sent to see
# what they do.
for sent in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(sent) is signal.SIG_IGN:
        signal.signal(sent, signal.default_int_handler if sent is signal.SIGINT else signal.SIG_DFL)
