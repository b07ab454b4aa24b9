package bench

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"golang.org/x/sys/unix"

	"github.com/perdure/perdure/cmd/internal/paint"
)

const (
	unitRate      = "/s"
	unitSeconds   = "s"
	unitMegabytes = "MB"
	unitKilobytes = "KB"
	unitPercent   = "%"
	unitLines     = "lines"
	unitTimes     = "×"
	unitRows      = "rows"
)

// A Figure is one line of the table.
type Figure struct {
	Store    string    `json:"store"`
	Target   string    `json:"target"`
	Scenario string    `json:"scenario"`
	What     string    `json:"what,omitempty"`
	Loop     string    `json:"loop,omitempty"`
	Count    int       `json:"count,omitempty"`
	Seconds  float64   `json:"seconds,omitempty"`
	Value    float64   `json:"value,omitempty"`
	Unit     string    `json:"unit,omitempty"`
	CPU      float64   `json:"cpu_us_each,omitempty"` // CPU time of the target for one operation, in microseconds
	Latency  *spread   `json:"latency_ms,omitempty"`
	Goals    []verdict `json:"goals,omitempty"`
}

// A Report has all figures, and the machine on which they were measured.
type Report struct {
	Machine  machine                      `json:"machine"`
	Stores   map[string]map[string]string `json:"stores"`
	Settings map[string]any               `json:"settings"`
	Figures  []Figure                     `json:"figures"`
}

// A goal is a bound for a figure on a machine with two cores.
type goal struct {
	scenario, what string
	store, target  string // empty means any
	metric         string // p50 or p99, or empty for the value
	least          bool   // the bound is a minimum, otherwise a maximum
	bound          float64
	at             func(*Bench) bool // the sizes at which it applies; nil means any
}

// The sizes at which goals apply.
var (
	millionLive = func(b *Bench) bool { return b.Live >= 1_000_000 && b.Due >= 100_000 }
	allStreams  = func(b *Bench) bool { return b.Streams >= min(10_000, MostStreams()) }
	manyRuns    = func(b *Bench) bool {
		return b.Streams >= min(eventRuns, MostStreams()) && b.rateOr(eventRate) >= eventRate
	}
	allSockets = func(b *Bench) bool {
		return b.Streams >= feedSockets && b.Live >= feedRuns && b.rateOr(feedRate) >= feedRate
	}
	manyTenants     = func(b *Bench) bool { return b.Tenants >= 1000 }
	millionBacklog  = func(b *Bench) bool { return b.Live >= 1_000_000 }
	millionEnded    = func(b *Bench) bool { return b.Ended >= 1_000_000 }
	longLog         = func(b *Bench) bool { return b.Lines >= 100_000 }
	manyCallers     = func(b *Bench) bool { return b.Callers >= agentsAtOnce }
	thousandStreams = func(b *Bench) bool { return b.Streams >= doorStreams }
	longJournal     = func(b *Bench) bool { return b.Steps >= 10_000 }
)

var projectGoals = []goal{
	{scenario: "engine-life", store: storeSQLite, target: targetProcess, least: true, bound: 5000},
	{scenario: "engine-life", store: storeSQLite, target: targetHTTP, least: true, bound: 2500},
	{scenario: "engine-life", store: storePostgres, target: targetProcess, least: true, bound: 5000},
	{scenario: "engine-drain", store: storePostgres, target: targetProcess, least: true, bound: 10000},
	{scenario: "idle", what: "dispatch", target: targetHTTP, metric: "p50", bound: 2},
	{scenario: "idle", what: "dispatch", target: targetHTTP, metric: "p99", bound: 10},
	{scenario: "wake", what: "dispatch, NATS", metric: "p99", bound: 30},
	{scenario: "wake", what: "dispatch, LISTEN/NOTIFY", metric: "p99", bound: 60},
	{scenario: "fleet", what: whatThreeToOne, least: true, bound: 0.8},
	{scenario: "fleet", what: whatElsewhere, bound: 2},
	{scenario: "fleet", what: whatNoisyToCalm, bound: 2, at: manyTenants},
	{scenario: "fleet", what: whatIndexed, metric: "p99", bound: 1000, at: millionBacklog},
	{scenario: "alarms", what: whatSweep, metric: "p99", bound: 10, at: millionLive},
	{scenario: "alarms", what: whatAtOnce, bound: 30, at: millionLive},
	{scenario: "alarms", what: fmt.Sprintf("%s at %d/s", whatLate, lateRate), metric: "p99", bound: 50,
		at: millionLive},
	{scenario: "backlog", what: whatRatio, bound: 2, at: millionLive},
	{scenario: "limits", what: whatRoomyToFree, least: true, bound: 0.85},
	{scenario: "limits", what: whatFreed, metric: "p99", bound: 20},
	{scenario: "limits", what: whatFreedTwo, metric: "p99", bound: 60},
	{scenario: "limits-backlog", what: whatBlockedOne, bound: 2, at: millionBacklog},
	{scenario: "limits-backlog", what: whatBlockedKeys, bound: 2, at: millionBacklog},
	{scenario: "limits-backlog", what: whatBlockedMany, bound: 2, at: millionBacklog},
	{scenario: "schedules", what: whatPlannedLate, metric: "p99", bound: 1000},
	{scenario: "schedules", what: whatDeadlineLate, metric: "p99", bound: 1000},
	{scenario: "streams", what: whatEachOwn, bound: 30, at: allStreams},
	{scenario: "streams", what: whatEachShared, bound: 30, at: allStreams},
	{scenario: "streams", what: whatToAll, metric: "p99", bound: 500, at: allStreams},
	{scenario: "events", what: whatToClient, metric: "p99", bound: 250, at: manyRuns},
	{scenario: "feed", what: whatToSocket, metric: "p99", bound: 1000, at: allSockets},
	{scenario: "feed", what: whatSockets, bound: 40, at: allSockets},
	{scenario: "feed", what: whatSocketsIdle, bound: 1, at: allSockets},
	{scenario: "feed", what: whatSocketMemory, bound: 100, at: allSockets},
	{scenario: "feed", what: "list", metric: "p99", bound: 100, at: millionEnded},
	{scenario: "feed", what: "list, running", metric: "p99", bound: 100, at: millionEnded},
	{scenario: "feed", what: "list, failed", metric: "p99", bound: 100, at: millionEnded},
	{scenario: "feed", what: "list, completed", metric: "p99", bound: 100, at: millionEnded},
	{scenario: "feed", what: "list, a kind", metric: "p99", bound: 100, at: millionEnded},
	{scenario: "feed", what: "list, a rare kind", metric: "p99", bound: 100, at: millionEnded},
	{scenario: "feed", what: "list, metadata", metric: "p99", bound: 100, at: millionEnded},
	{scenario: "feed", what: "list, a time", metric: "p99", bound: 100, at: millionEnded},
	{scenario: "replay", what: whatByStream, bound: 5, at: longLog},
	{scenario: "reconnect", what: whatAllBack, bound: 30, at: allStreams},
	{scenario: "webhooks", what: whatDelivered, least: true, bound: 300},
	{scenario: "agent-steps", store: storeSQLite, target: targetProcess, least: true, bound: 1000, at: manyCallers},
	{scenario: "agent-steps", store: storeSQLite, target: targetHTTP, least: true, bound: 500, at: manyCallers},
	{scenario: "agent-steps", what: whatAlone, store: storeSQLite, target: targetProcess, metric: "p50", bound: 4},
	{scenario: "agent-steps", what: whatAlone, store: storeSQLite, target: targetHTTP, metric: "p50", bound: 8},
	{scenario: "agent-children", store: storeSQLite, target: targetProcess, least: true, bound: 40, at: manyCallers},
	{scenario: "agent-children", store: storeSQLite, target: targetHTTP, least: true, bound: 20, at: manyCallers},
	{scenario: "agent-children", what: whatAlone, store: storeSQLite, target: targetProcess, metric: "p50", bound: 40},
	{scenario: "agent-children", what: whatAlone, store: storeSQLite, target: targetHTTP, metric: "p50", bound: 80},
	{scenario: "agent-replay", what: whatSteeper, bound: 15, at: longJournal},
	{scenario: "agent-conversation", what: whatTimes, bound: 3},
	{scenario: "agent-conversation", what: whatLater, bound: 1.5},
	{scenario: "sdks", what: beside("Python"), least: true, bound: 0.25},
	{scenario: "sdks", what: beside("TypeScript"), least: true, bound: 0.5},
	{scenario: "doors", what: ofAPI("LangGraph"), least: true, bound: 0.6, at: manyCallers},
	{scenario: "doors", what: ofAPI("OpenAI"), least: true, bound: 0.6, at: manyCallers},
	{scenario: "doors", what: overAPI("LangGraph"), bound: 1.5},
	{scenario: "doors", what: overAPI("OpenAI"), bound: 1.5},
	{scenario: "doors", what: streamOf("LangGraph"), bound: 60, at: thousandStreams},
	{scenario: "start", what: whatFirst, metric: "p99", bound: 300},
	{scenario: "start", what: whatMemory, bound: 60},
	{scenario: "start", what: whatBinary, bound: 40},
}

// A verdict compares a figure with a goal. Ratio is the figure divided by the bound.
type verdict struct {
	Metric string  `json:"metric,omitempty"`
	Least  bool    `json:"at_least,omitempty"`
	Bound  float64 `json:"bound"`
	Unit   string  `json:"unit"`
	Ratio  float64 `json:"ratio"`
	Met    bool    `json:"met"`
}

func (b *Bench) goals(f *Figure) (out []verdict) {
	for _, g := range projectGoals {
		if g.scenario != f.Scenario || g.what != f.What || g.store != "" && g.store != f.Store || g.target != "" &&
			g.target != f.Target {
			continue
		}
		if g.at != nil && !g.at(b) {
			continue
		}
		v, unit := f.Value, f.Unit
		if g.metric != "" {
			if f.Latency == nil {
				continue
			}
			v, unit = map[string]float64{"p50": f.Latency.P50, "p99": f.Latency.P99}[g.metric], "ms"
		}
		met := v <= g.bound
		if g.least {
			met = v >= g.bound
		}
		out = append(out, verdict{Metric: g.metric, Least: g.least, Bound: g.bound, Unit: unit, Ratio: v / g.bound,
			Met: met})
	}
	return out
}

func (v verdict) text(p paint.Painter) string {
	sign, mark, hue := "≤", "✓", paint.Green
	if v.Least {
		sign = "≥"
	}
	if !v.Met {
		mark, hue = "✗", paint.Red
	}
	if v.Metric != "" {
		sign = v.Metric + " " + sign
	}
	unit := v.Unit
	if unit != unitRate {
		unit = " " + unit
	}
	return p.In(hue, fmt.Sprintf("%s %s %g%s: %.2f", mark, sign, v.Bound, unit, v.Ratio))
}

// Print prints the table, with the machine below it.
func (r *Report) Print(w io.Writer, p paint.Painter) error {
	// tabwriter counts the bytes of colours, so only the last column has any.
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw,
		"store\ttarget\tscenario\tloop\tcount\tfigure\tcpu µs\tp50 ms\tp95 ms\tp99 ms\tmax ms\tgoal, figure/goal")
	dash := func(ok bool, format string, args ...any) string {
		if !ok {
			return "-"
		}
		return fmt.Sprintf(format, args...)
	}
	for _, f := range r.Figures {
		var goals []string
		for _, v := range f.Goals {
			goals = append(goals, v.text(p))
		}
		l := f.Latency
		if l == nil {
			l = &spread{}
		}
		ms := func(v float64) string { return dash(f.Latency != nil, "%.2f", v) }
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", f.Store, f.Target,
			named(f.Scenario, f.What), dash(f.Loop != "", "%s", f.Loop),
			dash(f.Count > 0, "%d", f.Count), dash(f.Unit != "", "%s", f.figure()), dash(f.CPU > 0, "%.0f", f.CPU),
			ms(l.P50), ms(l.P95), ms(l.P99), ms(l.Max), strings.Join(goals, ", "))
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(w)
	fmt.Fprintln(w, r.Machine)
	for _, name := range slices.Sorted(maps.Keys(r.Stores)) {
		fmt.Fprintf(w, "%s: %s\n", name, pairs(r.Stores[name]))
	}
	_, err := fmt.Fprintf(w, "bench: %s\n", pairs(r.Settings))
	return err
}

func (f *Figure) figure() string {
	switch f.Unit {
	case unitRate:
		return fmt.Sprintf("%.0f/s", f.Value)
	case unitLines:
		return fmt.Sprintf("%.0f %s", f.Value, f.Unit)
	}
	return fmt.Sprintf("%.2f %s", f.Value, f.Unit)
}

func pairs[T any](m map[string]T) string {
	var out []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		out = append(out, fmt.Sprintf("%s=%v", k, m[k]))
	}
	return strings.Join(out, " ")
}

// A machine has the properties on which figures depend.
type machine struct {
	Cores  int    `json:"cores"`
	CPU    string `json:"cpu"`
	Memory string `json:"memory"`
	Kernel string `json:"kernel"`
	// Load is the load average before the bench. A busy machine makes figures worthless.
	Load       string `json:"load"`
	FileSystem string `json:"file_system"`
	// Sync is the time to append a page to a file and sync it. No durable write is faster.
	Sync     *spread   `json:"sync_ms"`
	Go       string    `json:"go"`
	Platform string    `json:"platform"`
	Commit   string    `json:"commit,omitempty"`
	At       time.Time `json:"at"`
}

func (m machine) String() string {
	sync := "?"
	if m.Sync != nil {
		sync = fmt.Sprintf("%.2f ms, p99 %.2f", m.Sync.P50, m.Sync.P99)
	}
	return fmt.Sprintf("machine: %d cores, %s, %s, Linux %s, %s (sync of a page: p50 %s), load before %s; %s %s, "+
		"commit %s, %s", m.Cores, m.CPU, m.Memory, m.Kernel,
		m.FileSystem, sync, m.Load, m.Go, m.Platform, cmp.Or(m.Commit, "unknown"), m.At.Format(time.RFC3339))
}

// readMachine reads the properties of the machine, as far as they are available.
func readMachine(dir string) machine {
	m := machine{Cores: runtime.NumCPU(), Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH,
		At: time.Now().UTC().Truncate(time.Second)}
	m.CPU = field("/proc/cpuinfo", "model name")
	m.Memory = field("/proc/meminfo", "MemTotal")
	if b, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		m.Kernel = strings.TrimSpace(string(b))
	}
	if b, err := os.ReadFile("/proc/loadavg"); err == nil {
		m.Load = strings.Join(strings.Fields(string(b))[:3], " ")
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			switch {
			case s.Key == "vcs.revision":
				m.Commit = s.Value + m.Commit
			case s.Key == "vcs.modified" && s.Value == "true":
				m.Commit += " with changes"
			}
		}
	}
	if dir = cmp.Or(dir, os.TempDir()); dir != "" {
		m.FileSystem = fileSystem(dir)
		m.Sync = measureSync(dir)
	}
	return m
}

// field reads a line such as "name : value".
func field(path, name string) string {
	b, _ := os.ReadFile(path)
	for line := range strings.Lines(string(b)) {
		if k, v, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(k) == name {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

func fileSystem(dir string) string {
	var st unix.Statfs_t
	if unix.Statfs(dir, &st) != nil {
		return ""
	}
	switch st.Type {
	case unix.EXT4_SUPER_MAGIC:
		return "ext4"
	case unix.XFS_SUPER_MAGIC:
		return "xfs"
	case unix.BTRFS_SUPER_MAGIC:
		return "btrfs"
	case unix.OVERLAYFS_SUPER_MAGIC:
		return "overlayfs"
	case unix.TMPFS_MAGIC:
		return "tmpfs: nothing here survives a power loss"
	}
	return fmt.Sprintf("file system %#x", st.Type)
}

func measureSync(dir string) *spread {
	f, err := os.CreateTemp(dir, "perdure-bench-sync-")
	if err != nil {
		return nil
	}
	defer os.Remove(filepath.Clean(f.Name()))
	defer f.Close()
	page := make([]byte, 4096)
	var s samples
	for range 200 {
		at := time.Now()
		if _, err := f.Write(page); err != nil {
			return nil
		}
		if err := unix.Fdatasync(int(f.Fd())); err != nil {
			return nil
		}
		s.add(time.Since(at))
	}
	return s.spread()
}
