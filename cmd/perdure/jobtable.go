package main

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/internal/process/jobdir"
)

// The job table gives the live runs of a user short numbers, as a shell does: %1, %2. It is a file in
// the user's state folder. Every change reads the file, writes another and renames it, under a lock, so
// that commands in several shells don't lose each other's changes. A reader needs no lock.
//
// A run whose end was shown loses its number and keeps its name, so that %name still means it: a session
// is continued after its end. The table forgets the oldest of those.
//
// The table is a convenience. A command that can't write it works all the same, without numbers.

// Bounds of the job table.
const (
	maxJobs     = 200 // with a number
	maxEnded    = 100
	maxJobTable = 512 << 10
	maxAbout    = 100
)

// A job is a run that has a number, or a name.
type job struct {
	// N is 0 if the end of the run was shown.
	N     int           `json:"n"`
	RunID perdure.RunID `json:"run_id"`
	// Scope tells servers and tenants apart, each of which has its own numbers.
	Scope string `json:"scope"`
	Name  string `json:"name"`
	// About is the command of a process.
	About string `json:"about,omitempty"`
	// Used is the table's count when the job was last started or attached to, and 0 before. The largest
	// is that of the current job. Of an ended one it is the count when its end was shown.
	Used int64 `json:"used"`
	// Shown is what this user has seen of the output of a process.
	Shown shown `json:"shown,omitzero"`
}

// shown says up to where the output of a process has been shown.
type shown struct {
	// After is the number of the last event that was shown. It is 0 if the output was shown from files.
	After   int64 `json:"after,omitempty"`
	Attempt int   `json:"attempt,omitempty"`
	// Offsets count the bytes of that attempt.
	Offsets jobdir.Offsets `json:"offsets,omitzero"`
}

// A jobTable is the content of the file.
type jobTable struct {
	Used int64 `json:"used"`
	Jobs []job `json:"jobs"`
}

// stateFolder returns the folder of this user's state: that of XDG_STATE_HOME, or of the home folder.
func stateFolder() (string, error) {
	if dir := os.Getenv("XDG_STATE_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "perdure"), nil
	}
	home, err := os.UserHomeDir()
	return filepath.Join(home, ".local", "state", "perdure"), err
}

// readJobs reads the job table. One that is not there or damaged is empty.
func readJobs() (t jobTable) {
	dir, err := stateFolder()
	if err != nil {
		return t
	}
	f, err := os.Open(filepath.Join(dir, "jobs.json"))
	if err != nil {
		return t
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxJobTable+1))
	if err != nil || len(b) > maxJobTable || json.Unmarshal(b, &t) != nil {
		return jobTable{}
	}
	return t
}

// tableLockTime is how long a command waits for another one that changes the job table.
const tableLockTime = 2 * time.Second

// changeJobs changes the job table, if the function says that it has changed it.
func changeJobs(change func(t *jobTable) bool) error {
	dir, err := stateFolder()
	if err == nil {
		err = os.MkdirAll(dir, 0o700)
	}
	if err != nil {
		return err
	}
	lock, err := os.OpenFile(filepath.Join(dir, "jobs.lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer lock.Close() // unlocks
	for end := time.Now().Add(tableLockTime); ; time.Sleep(2 * time.Millisecond) {
		err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			break
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) || time.Now().After(end) {
			return fmt.Errorf("lock the job table: %w", err)
		}
	}
	t := readJobs()
	if !change(&t) {
		return nil
	}
	b, err := json.Marshal(&t)
	if err != nil {
		return err
	}
	temp := filepath.Join(dir, "jobs.tmp")
	if err := os.WriteFile(temp, b, 0o600); err != nil {
		return err
	}
	return os.Rename(temp, filepath.Join(dir, "jobs.json"))
}

// find returns the job of a run, or nil.
func (t *jobTable) find(scope string, id perdure.RunID) *job {
	for i := range t.Jobs {
		if j := &t.Jobs[i]; j.Scope == scope && j.RunID == id {
			return j
		}
	}
	return nil
}

// use makes a job the current one. A run without a number gets one.
func (t *jobTable) use(scope string, id perdure.RunID) *job {
	t.Used++
	j := t.add(scope, id)
	j.Used = t.Used
	return j
}

// add gives a run the smallest free number, if it has none.
func (t *jobTable) add(scope string, id perdure.RunID) *job {
	if j := t.find(scope, id); j != nil && j.N > 0 {
		return j
	}
	if t.numbered() >= maxJobs {
		var oldest *job
		for i := range t.Jobs {
			if j := &t.Jobs[i]; j.N > 0 && (oldest == nil || j.Used < oldest.Used) {
				oldest = j
			}
		}
		t.remove(oldest.Scope, oldest.RunID)
	}
	n := 1
	for slices.ContainsFunc(t.Jobs, func(j job) bool { return j.Scope == scope && j.N == n }) {
		n++
	}
	if j := t.find(scope, id); j != nil { // it lives again, in a store that was restored
		j.N = n
		return j
	}
	t.Jobs = append(t.Jobs, job{N: n, RunID: id, Scope: scope})
	return &t.Jobs[len(t.Jobs)-1]
}

// numbered counts the jobs that have a number.
func (t *jobTable) numbered() (n int) {
	for i := range t.Jobs {
		if t.Jobs[i].N > 0 {
			n++
		}
	}
	return n
}

// end frees the number of a run, and keeps its name. It forgets the ended jobs that are too many.
func (t *jobTable) end(scope string, id perdure.RunID) bool {
	j := t.find(scope, id)
	if j == nil || j.N == 0 {
		return false
	}
	t.Used++
	*j = job{RunID: id, Scope: scope, Name: j.Name, Used: t.Used}
	var ended []job
	for _, j := range t.Jobs {
		if j.N == 0 {
			ended = append(ended, j)
		}
	}
	slices.SortStableFunc(ended, func(a, b job) int { return cmp.Compare(a.Used, b.Used) })
	for _, j := range ended[:max(0, len(ended)-maxEnded)] {
		t.remove(j.Scope, j.RunID)
	}
	return true
}

// addListed gives the live runs of a list numbers, the oldest first. A list takes no number away: if
// there are too few, the newest runs get them.
func (t *jobTable) addListed(scope string, runs []api.Run) {
	var ids []perdure.RunID
	free := maxJobs - t.numbered()
	for i := range runs {
		r := &runs[i]
		j := t.find(scope, r.RunID)
		if !r.State.Terminal() && (j == nil || j.N == 0) && len(ids) < free {
			ids = append(ids, r.RunID)
		}
	}
	for _, id := range slices.Backward(ids) {
		t.add(scope, id)
	}
}

// remove forgets a run.
func (t *jobTable) remove(scope string, id perdure.RunID) bool {
	n := len(t.Jobs)
	t.Jobs = slices.DeleteFunc(t.Jobs, func(j job) bool { return j.Scope == scope && j.RunID == id })
	return len(t.Jobs) < n
}

// resolve returns the run that a word such as %1, %%, %- or %name means.
func (t *jobTable) resolve(scope, word string) (perdure.RunID, error) {
	var own, ended []job
	for _, j := range t.Jobs {
		switch {
		case j.Scope != scope:
		case j.N == 0:
			ended = append(ended, j)
		default:
			own = append(own, j)
		}
	}
	latest := func(a, b job) int { return cmp.Or(cmp.Compare(b.Used, a.Used), cmp.Compare(b.N, a.N)) }
	slices.SortFunc(own, latest)
	none := fmt.Errorf("%s: there is no such job (perdure jobs lists them)", word)
	what := strings.TrimPrefix(word, "%")
	switch n, err := strconv.Atoi(what); {
	case what == "" || what == "%" || what == "+":
		if len(own) > 0 {
			return own[0].RunID, nil
		}
	case what == "-":
		if len(own) > 1 {
			return own[1].RunID, nil
		}
	case err == nil:
		if i := slices.IndexFunc(own, func(j job) bool { return j.N == n }); i >= 0 {
			return own[i].RunID, nil
		}
	default:
		slices.SortStableFunc(ended, latest)
		return resolveName(own, ended, word, what, none)
	}
	return "", none
}

// resolveName returns the run that a name means. A whole name goes before those that only begin so, also
// that of an ended job before those of live ones. Several ended jobs may have the same name: it means
// the latest of them, the first of the list.
func resolveName(live, ended []job, word, what string, none error) (perdure.RunID, error) {
	for _, whole := range []bool{true, false} {
		found := named(live, what, whole)
		if len(found) == 1 {
			return found[0].RunID, nil
		}
		if len(found) > 1 {
			numbers := make([]string, len(found))
			for i, j := range found {
				numbers[i] = fmt.Sprintf("%%%d", j.N)
			}
			return "", fmt.Errorf("%s: these jobs begin with that: %s", word, strings.Join(numbers, ", "))
		}
		found = named(ended, what, whole)
		var names []string
		for _, j := range found {
			if name := visible(j.Name); !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
		switch {
		case len(names) == 1:
			return found[0].RunID, nil
		case len(names) > 1:
			return "", fmt.Errorf("%s: these ended jobs begin with that: %s", word, strings.Join(names, ", "))
		}
	}
	return "", none
}

// named returns the jobs that have a name, or whose name begins with it.
func named(list []job, what string, whole bool) (found []job) {
	for _, j := range list {
		if j.Name == what || !whole && strings.HasPrefix(j.Name, what) {
			found = append(found, j)
		}
	}
	return found
}

// scope returns the name of the server and the tenant in the job table.
func (c *connFlags) scope() (string, error) {
	key, err := c.findKey()
	if err != nil {
		return "", err
	}
	scope := c.address() + "\x00" + key
	if t := c.tenantName(); t != "" {
		scope += "\x00" + t
	}
	sum := sha256.Sum256([]byte(scope))
	return hex.EncodeToString(sum[:8]), nil
}

// runID returns the run that an argument names: its id, or a job such as %1.
func (c *connFlags) runID(word string) (perdure.RunID, error) {
	if !strings.HasPrefix(word, "%") {
		return perdure.RunID(word), nil
	}
	scope, err := c.scope()
	if err != nil {
		return "", err
	}
	t := readJobs()
	return t.resolve(scope, word)
}

// currentJob returns the run that was last started or attached to.
func (c *connFlags) currentJob() (perdure.RunID, error) {
	id, err := c.runID("%%")
	if err != nil {
		if _, keyErr := c.scope(); keyErr != nil {
			return "", keyErr
		}
		return "", errors.New("there is no current job: name a run, or a job that perdure jobs lists")
	}
	return id, nil
}

// change changes the job of a run, which becomes the current one. It returns the job's number, or 0 if
// the table can't be changed.
func (c *connFlags) change(id perdure.RunID, change func(j *job)) (n int) {
	scope, err := c.scope()
	if err != nil {
		return 0
	}
	err = changeJobs(func(t *jobTable) bool {
		j := t.use(scope, id)
		change(j)
		n = j.N
		return true
	})
	if err != nil {
		return 0
	}
	return n
}

// attached makes a run that was started or attached to the current job, and returns its number.
func (c *connFlags) attached(r *api.Run) int {
	return c.change(r.RunID, func(j *job) { j.describe(r) })
}

// shown returns what this user has seen of the output of a process.
func (c *connFlags) shown(id perdure.RunID) (s shown) {
	scope, err := c.scope()
	if err != nil {
		return s
	}
	t := readJobs()
	if j := t.find(scope, id); j != nil {
		s = j.Shown
	}
	return s
}

// setShown remembers what this user has seen of the output of a process.
func (c *connFlags) setShown(id perdure.RunID, s shown) {
	c.change(id, func(j *job) { j.Shown = s })
}

// ended frees the number of a run whose end was shown. Its name stays.
func (c *connFlags) ended(id perdure.RunID) {
	if scope, err := c.scope(); err == nil {
		_ = changeJobs(func(t *jobTable) bool { return t.end(scope, id) })
	}
}

// left frees the number of a run that somebody stayed with, unless they have detached.
func (c *connFlags) left(id perdure.RunID, err error) {
	var code exitError
	var left detachedError
	if err == nil || errors.As(err, &code) && !errors.As(err, &left) {
		c.ended(id)
	}
}

// Bounds of the calls that a list of jobs makes beside that for the list.
const (
	maxLookups    = 50 // of processes whose command is not known
	lookupsAtOnce = 8
	maxChecks     = 20 // of jobs that are not in the list
)

// number gives the live runs of a list numbers, and frees those of ended ones. It returns the jobs of
// the list as they are shown now.
func (c *connFlags) number(ctx context.Context, conn *client.Client, runs []api.Run) map[perdure.RunID]job {
	out := make(map[perdure.RunID]job)
	scope, err := c.scope()
	if err != nil {
		return out
	}
	t := readJobs()
	full := make(map[perdure.RunID]*api.Run) // with its input, if it is needed
	listed := make(map[perdure.RunID]bool)
	var unknown []perdure.RunID
	for i := range runs {
		r := &runs[i]
		listed[r.RunID], full[r.RunID] = true, r
		if j := t.find(scope, r.RunID); isCommand(r) && (j == nil || j.About == "") {
			unknown = append(unknown, r.RunID)
		}
	}
	for _, r := range lookUp(ctx, conn, unknown[:min(len(unknown), maxLookups)]) {
		full[r.RunID] = r
	}
	for id, r := range full {
		var j job
		j.describe(r)
		out[id] = j
	}
	gone, over := c.endedJobs(ctx, conn, scope, &t, listed)
	err = changeJobs(func(t *jobTable) bool {
		for _, id := range gone {
			t.remove(scope, id)
		}
		for _, id := range over {
			t.end(scope, id)
		}
		t.addListed(scope, runs)
		for i := range runs {
			r := &runs[i]
			j := t.find(scope, r.RunID)
			if j == nil {
				continue
			}
			j.describe(full[r.RunID])
			if out[r.RunID] = *j; r.State.Terminal() {
				t.end(scope, r.RunID)
			}
		}
		return true
	})
	if err != nil {
		for id, j := range out {
			j.N = 0 // nobody would find it
			out[id] = j
		}
	}
	return out
}

// lookUp gets runs, several at a time. Those that can't be got are left out.
func lookUp(ctx context.Context, conn *client.Client, ids []perdure.RunID) (out []*api.Run) {
	got := make([]*api.Run, len(ids))
	var wg sync.WaitGroup
	for first := range min(len(ids), lookupsAtOnce) {
		wg.Go(func() {
			for i := first; i < len(ids); i += lookupsAtOnce {
				got[i], _ = conn.Get(ctx, ids[i])
			}
		})
	}
	wg.Wait()
	for _, r := range got {
		if r != nil {
			out = append(out, r)
		}
	}
	return out
}

// endedJobs returns jobs that are not in a list: those whose run is gone, and those whose run has ended.
func (c *connFlags) endedJobs(ctx context.Context, conn *client.Client, scope string, t *jobTable,
	listed map[perdure.RunID]bool) (gone, over []perdure.RunID) {
	checks := 0
	for _, j := range t.Jobs {
		if j.Scope != scope || j.N == 0 || listed[j.RunID] || checks >= maxChecks {
			continue
		}
		checks++
		r, err := conn.Get(ctx, j.RunID)
		switch {
		case client.CodeOf(err) == perdure.CodeNotFound:
			gone = append(gone, j.RunID)
		case err == nil && r.State.Terminal():
			over = append(over, j.RunID)
		}
	}
	return gone, over
}

// describe sets the name of a job, and the command of a process if the run has its input.
func (j *job) describe(r *api.Run) {
	if command := commandOf(r); len(command) > 0 {
		j.About = shortened(shellWords(command), maxAbout)
		j.Name = shortened(filepath.Base(command[0]), maxAbout)
	}
	if j.Name == "" {
		j.Name = r.Kind
	}
	if name := r.Metadata["name"]; name != "" {
		j.Name = shortened(name, maxAbout)
	}
}

// ownName returns the name of a job that is not just the run's kind.
func (j *job) ownName(r *api.Run) string {
	if j.Name == r.Kind && r.Metadata["name"] == "" {
		return ""
	}
	return j.Name
}

// commandOf returns the command of a process, if the run has its input.
func commandOf(r *api.Run) []string {
	var spec struct{ Command []string }
	if !isCommand(r) || json.Unmarshal(r.Input, &spec) != nil {
		return nil
	}
	return spec.Command
}

// shellWords writes a command as a shell would take it.
func shellWords(command []string) string {
	words := make([]string, len(command))
	for i, w := range command {
		if words[i] = w; w == "" || strings.ContainsFunc(w, needsQuotes) {
			words[i] = "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
		}
	}
	return strings.Join(words, " ")
}

// needsQuotes tells whether a shell takes a character as something else than itself.
func needsQuotes(r rune) bool {
	return !isPlain(r) || strings.ContainsRune(" \"'`$&|;<>()*?[]{}~#!\\", r)
}

// shortened returns at most n bytes of a text.
func shortened(text string, n int) string {
	if len(text) <= n {
		return text
	}
	return strings.ToValidUTF8(text[:n], "") + "…"
}
