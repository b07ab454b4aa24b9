package main

import (
	"strings"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/settings"
)

const configurationIntro = `# Configuration

<!-- printed from internal/server/settings and policy.go by internal/tools/docgen: run "make docs" after a change -->

Each setting has one name. It is taken from a file in TOML, which ~--config~ or ~PERDURE_CONFIG~
names, from the environment, and from a flag of ~perdure serve~. Flags win over the environment,
which wins over the file. A name that does not exist is refused, and so is a value out of its bounds.
~perdure config check~ reads all three as the server would, and prints the values in force. A server
reads them once, when it starts.

- A dot in a name is a section of the file: ~policy.timeouts.task.max~ is ~max~ in
  ~[policy.timeouts.task]~.
- Durations are texts with a unit, such as "30s" or "1h15m".
- A list is a list in the file; in the environment and as a flag its items are separated by commas.
- An empty variable and an empty flag count as not given.

[Running a server](server.md#configuration) shows a file and says more about some of them.

## Server

`

const policyIntro = `
## Policy

These decide when something is done about a run: see the [watchdog](watchdog.md),
[retention](retention.md), [artifacts](artifacts.md), the [audit log](security.md#the-audit-log) and
[liveness](liveness.md). A Go program that has the server inside sets ~embedded.Options.Policy~. *Also
known as* gives the names of the same settings in other systems with such a net.

`

const livenessIntro = `
## Liveness

Four thresholds may be set for a kind of runs, for an activity, and for an activity of a kind: see
[liveness](liveness.md#thresholds-of-ones-own). Each of them has three names; KIND and ACTIVITY stand
for names of your own:

- ~liveness.kind.KIND.silent~
- ~liveness.activity.ACTIVITY.silent~
- ~liveness.kind.KIND.activity.ACTIVITY.silent~

A flag is ~--liveness kind.KIND.silent=2m~, and may be given again. The variable takes several,
separated by commas: ~PERDURE_LIVENESS=kind.KIND.silent=2m,activity.ACTIVITY.dead=1h~. A name with
anything but letters, digits, - and _ stands in double quotes, as in the file.

`

// aliases are the names of settings of the policy in other systems.
var aliases = map[string]string{
	"lease":                    "`job:{job_id}:lease`",
	"dispatched_retry":         "`pmo.dispatched_retry_seconds`",
	"dispatched_timeout":       "`pmo.dispatched_timeout_seconds`",
	"inbox_processing_timeout": "`worker.inbox_processing_timeout_seconds`",
	"suspend_timeout":          "`worker.suspend_timeout_seconds`",
	"pending_wakeup":           "`pmo.pending_wakeup_seconds`",
	"pending_wakeup_skip":      "`pmo.pending_wakeup_skip_seconds`",
	"active_reap":              "`pmo.active_reap_seconds`",
	"worker_offline":           "`worker:{worker_id}:heartbeat`",
	"max_attempts":             "`retry_count`",
	"timeouts.task.default":    "`timeout_sec`",
	"timeouts.task.max":        "job max",
	"dead_letter_ttl":          "`job_dlq:{tenant_id}`",
	"idempotency_ttl":          "`job:idempotency:{key}`",
	"retention":                "`job:{job_id}:result`",
	"watchdog_interval":        "`pmo.watchdog_interval_seconds`, `worker.watchdog_interval_seconds`",
}

// elsewhere are the bounds that are no items: they are asked for where they are used.
var elsewhere = [][4]string{
	{"a worker's long poll", "30 s", "`wait` of a poll, at most a minute", "worker long poll"},
	{"a wait", "`suspend_timeout`", "`timeout` of a wait is exact; `never` lasts until the run's deadline; of the " +
		"`tool` that it is for and the default the greater one counts",
		"`options.suspend_timeout_seconds`, `options.timeout_seconds` of a tool definition"},
	{"a wait for `start_task`", "", "for the signal or the approval of that name, unless the wait says otherwise",
		"orchestrator wait, `event:{project_id}:start_task`"},
	{"a wait for `approve_push`", "", "the same", "approval wait, `event:{project_id}:approve_push`"},
}

// configuration prints the table of settings.
func configuration(w *strings.Builder) {
	w.WriteString(ticks(configurationIntro))
	header(w, "setting", "default", "allowed", "environment", "flag", "what it says")
	var policy []settings.Setting
	for _, s := range settings.Default().Table() {
		if strings.HasPrefix(s.Name, "policy.") {
			policy = append(policy, s)
			continue
		}
		help := strings.ReplaceAll(s.Help, "`", "")
		row(w, code(s.Name), defaultOf(&s), s.Bounds(), code(s.Env()), code(s.Flag()), help)
	}
	w.WriteString(ticks(policyIntro))
	header(w, "setting", "default", "allowed", "environment", "flag", "what it says", "also known as")
	for _, s := range policy {
		alias := aliases[strings.TrimPrefix(s.Name, "policy.")]
		row(w, code(s.Name), defaultOf(&s), s.Bounds(), code(s.Env()), code(s.Flag()+"…"), s.Help, alias)
	}
	w.WriteString("\nSome bounds are no settings but are asked for where they are used:\n\n")
	header(w, "of what", "default", "asked for by", "also known as")
	for _, e := range elsewhere {
		for name, d := range perdure.WaitTimeouts {
			if strings.HasSuffix(e[0], code(name)) {
				e[1] = duration(d)
			}
		}
		row(w, e[:]...)
	}
	w.WriteString(ticks(livenessIntro))
	header(w, "threshold", "allowed", "what it says")
	for _, s := range new(perdure.Thresholds).Settings() {
		row(w, s.Name, s.Bounds(), s.Help)
	}
}

// ticks puts backquotes where a text in backquotes has tildes.
func ticks(s string) string { return strings.ReplaceAll(s, "~", "`") }

// defaultOf writes a default as the setting takes it, or in words.
func defaultOf(s *settings.Setting) string {
	if d, ok := s.Value.(*time.Duration); ok {
		return code(short(*d))
	}
	if text := s.Text(); text == s.Otherwise {
		return text
	}
	return code(s.Text())
}

// short writes a duration without parts that are zero: "10m" and not "10m0s".
func short(d time.Duration) string {
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}
