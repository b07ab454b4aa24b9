package journal

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Reports are the messages and lines that an agent writes outside of steps. A replay comes to them
// again, and writes those that no earlier execution has written.
//
// A report is recognized by two things: the point after which it was made, and its digest. A point is
// something that is in the journal, or that has failed without being recorded: "step search#1" is after
// that step, "step search#1!" after its error, and Start before any of them. Under a point digests are
// counted, so two equal reports are two, and their order does not matter.
//
// A report that is not found is new and is written. A report that an earlier execution wrote, and that
// this one does not come to, stays written.
//
// An entry of the journal is an object: for each point the digests of its reports, DigestSize
// characters each, one after the other. So 10 000 reports after one point take 80 KB. A replay keeps
// them in this form until it comes to the point.
type Reports struct {
	// said has the digests of each point, as the entries have them.
	said map[string]string
	// left counts the digests of points that the execution has come to, without those that it has asked
	// for.
	left map[string]map[string]int
	// removed counts the digests of points that the code no longer has.
	removed map[string]int
	// oldMessages and oldLines count the reports of entries of the old form; see ReadCounts.
	oldMessages, oldLines int
}

const (
	// DigestSize is the length of a digest: 6 bytes in base64. A new report is taken for another one of
	// its point with a probability of 2^-48.
	DigestSize = 8
	// Start is the point before anything is recorded. That of a branch has the branch in it.
	Start = "start"
	// Aside is the point of reports that goroutines make which are no branches. Their order is not
	// determined, so their digest alone tells them apart.
	Aside = "aside"
)

// A Kind tells messages from lines of the log.
type Kind int

// The kinds of reports.
const (
	Message Kind = iota
	Line
)

// Digest returns the digest of a report: of its parts, each with its length before it.
func Digest(parts ...string) string {
	h := sha256.New()
	for _, p := range parts {
		var n [8]byte
		binary.BigEndian.PutUint64(n[:], uint64(len(p)))
		h.Write(n[:])
		h.Write([]byte(p))
	}
	return base64.RawURLEncoding.EncodeToString(h.Sum(nil)[:6])
}

// NewReports returns the reports of a run that has made none.
func NewReports() Reports {
	return Reports{said: map[string]string{}, left: map[string]map[string]int{},
		removed: map[string]int{}}
}

// Read adds an entry of the journal.
func (r *Reports) Read(value json.RawMessage) error {
	var entry ReportEntry
	if err := json.Unmarshal(value, &entry); err != nil {
		return err
	}
	for point, digests := range entry {
		if len(digests)%DigestSize != 0 {
			return fmt.Errorf("the digests after %q have %d characters", point, len(digests))
		}
		r.said[point] += digests
	}
	return nil
}

// ReadCounts adds the numbers of messages and lines that a frame of the old form has. Such a frame does
// not say which they were. So many messages and lines of this execution are taken for them, whatever
// they are, as the release that wrote the frame did. That ends when the execution begins something new
// (Forget): an answer that is made then is not in an old frame. A text that a failed attempt wrote
// under the old form may be written again.
func (r *Reports) ReadCounts(messages, lines int) {
	r.oldMessages += messages
	r.oldLines += lines
}

// Forget drops the reports that only counting can recognize, and those of removed points. It is
// called when the execution begins something that is not in the journal.
func (r *Reports) Forget() {
	r.oldMessages, r.oldLines = 0, 0
	clear(r.removed)
}

// Made tells whether an earlier execution has made a report after a point. Each of its reports is found
// once.
func (r *Reports) Made(kind Kind, point, digest string) bool {
	old := &r.oldMessages
	if kind == Line {
		old = &r.oldLines
	}
	if *old > 0 {
		*old--
		return true
	}
	return take(r.unpack(point), digest) || take(r.removed, digest)
}

// Open tells whether earlier executions made reports after a point that this one has not come to.
func (r *Reports) Open(point string) bool {
	return r.oldMessages > 0 || r.oldLines > 0 || len(r.unpack(point)) > 0
}

// Remove tells that the code no longer has the points that a function selects. Their reports are found
// after any other point until the execution begins something new: a report after a removed
// step comes after the step before it now.
func (r *Reports) Remove(gone func(point string) bool) {
	for _, point := range slices.Collect(maps.Keys(r.said)) {
		if !gone(strings.TrimSuffix(point, "!")) {
			continue
		}
		for digest, n := range r.unpack(point) {
			r.removed[digest] += n
		}
		delete(r.left, point)
	}
}

// unpack returns the counted digests of a point.
func (r *Reports) unpack(point string) map[string]int {
	if digests, ok := r.said[point]; ok {
		counted := make(map[string]int, len(digests)/DigestSize)
		for ; digests != ""; digests = digests[DigestSize:] {
			counted[digests[:DigestSize]]++
		}
		r.left[point] = counted
		delete(r.said, point)
	}
	return r.left[point]
}

// take removes one of a digest, and tells whether there was one.
func take(counted map[string]int, digest string) bool {
	n := counted[digest]
	if n > 1 {
		counted[digest] = n - 1
	} else {
		delete(counted, digest)
	}
	return n > 0
}

// ReportEntry is an entry of the journal with new reports: the digests of each point.
type ReportEntry map[string]string

// Add adds a report.
func (s *ReportEntry) Add(point, digest string) {
	if *s == nil {
		*s = ReportEntry{}
	}
	(*s)[point] += digest
}
