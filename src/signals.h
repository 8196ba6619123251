/* signals.h - SIGTERM, SIGINT and SIGUSR1 end a run at the end of a step.
 *
 * The first is noted, for the caller to look at; the second ends the process at
 * once, by its own default.  Nothing half-written has its real name at any
 * time, so that is safe.
 */
#ifndef CF_SIGNALS_H
#define CF_SIGNALS_H

/* From here on these three are noted. */
void cf_signals_open(void);

/* From here on they have their default again. */
void cf_signals_close(void);

/* The one that was noted since open, 0 when there is none. */
int cf_signals_noted(void);

/* "SIGTERM". */
const char *cf_signal_name(int signal);

#endif
