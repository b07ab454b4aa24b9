package main

import (
	"fmt"
	"strings"

	"github.com/perdure/perdure/internal/server/metrics"
)

const metricsIntro = `# Metrics

<!-- printed from metrics.Table by internal/tools/docgen; change that, then run "make docs" -->

` + "`GET /metrics`" + ` speaks to Prometheus. It takes a key of the platform:

` + "```sh" + `
curl -s -H "Authorization: Bearer $(cat perdure-data/admin.key)" http://127.0.0.1:7373/metrics | grep ^perdure_
` + "```" + `

` + "```yaml" + `
scrape_configs:
  - job_name: perdure
    authorization:
      credentials_file: /etc/prometheus/perdure.key
    static_configs:
      - targets: [127.0.0.1:7373]
` + "```" + `

[alerts.yml](../deploy/alerts.yml) is a file of rules to begin with; [symptoms](symptoms.md) says what to do about
each. The one that matters most is
` + "`perdure_runs_past_deadline`" + `: it must be 0. A run
that was leased when every server was away is spared for a moment when one comes back, and is not counted until
that is over.

Metrics of a *node* count what went through it since it started: add them up over nodes. Those of the *store*
say what there is, and are equal on all
nodes: take the maximum. They are counted when somebody asks, by reading the live runs; what has ended is not
looked at. A count is good for a
second, and on a large store for longer, so that counting takes no more than a twentieth of a reader's time. If
the store does not answer
within two seconds, the answer comes without them and with ` + "`perdure_scrape_ok`" + ` 0. Ages go on
meanwhile, whatever the count they come from. While the store
can't be asked for keys, one does that this node has seen valid within a day, for this page alone, unless it
was revoked here or has expired.

No label names a run, a thread, a tenant or a worker. Names that callers make up, queues, kinds and causes, are
labels for 100 of them; the rest is
` + "`other`" + `.

`

const metricsOutro = `
Beside them stand ` + "`go_*`" + ` and ` + "`process_*`" + ` of the Go runtime and the process.

## What the watchdog did

` + "`perdure_watchdog_actions_total`" + ` says how often; the watchdog's log says what and why, each action
once, however many nodes sweep:

` + "```sh" + `
perdure watchdog                     # the newest 50
perdure watchdog --rule W6 -n 200    # lost workers
perdure watchdog --run RUN --json
` + "```" + `

It is in the store, written together with what it tells of, and holds the newest 10 000 entries of the last 7
days. ` + "`GET /api/admin/watchdog`" + ` takes ` + "`rule`, `run_id`, `tenant`, `limit`" + ` and
` + "`cursor`" + `; of a ` + "`run_id`" + ` that no run has it says 404. It has figures and names, and nothing
that a run was given or has said. The same lines go to the server's log,
with the full name of the rule (` + "`full_name`" + `).

## Invariants

` + "`perdure fsck`, or `GET /api/admin/invariants`" + `, checks everything stored against the
[invariants](invariants.md) and counts the runs past their deadline, with the
ids of the first ones. It reads the whole store, on a connection of its own, one check at a time; over HTTP it
stops after two minutes, with the query that it is at,
and names what it left unchecked. With ` + "`recent=true`" + ` it may answer with the last check's result, as long
as that is not older than a minute, or a hundred times what the check took; ` + "`checked_at` and `took_ms`" + ` tell.
The dashboard asks that way. ` + "`perdure fsck --stopped` and `--store`" + ` take as long as it takes.
`

func metricsPage(w *strings.Builder) {
	w.WriteString(metricsIntro)
	header(w, "metric", "type", "labels", "of the", "meaning", "look when")
	for _, m := range metrics.Table {
		var labels []string
		for _, l := range m.Labels {
			labels = append(labels, code(l))
		}
		of := "store"
		if m.Local {
			of = "node"
		}
		row(w, code(m.Name), string(m.Type), strings.Join(labels, ", "), of, strings.TrimSuffix(m.Help, "."), m.Watch)
	}
	fmt.Fprint(w, metricsOutro)
}
