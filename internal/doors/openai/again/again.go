package again

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/internal/doors"
	"github.com/perdure/perdure/internal/doors/openai/shape"
)

// A client that got no answer posts again, without an idempotency key, with a header that counts the
// retries. A run has a digest of its call in its metadata: of the key, the path and the body.
//
// A first call always starts a run. A retry is answered with the newest run of its digest, if that is
// young; without one, it starts the run itself. Both name the run after the digest and the newest run
// before it. So of a first call and a retry that overtakes it, on whatever nodes, one starts the run
// and the other one is refused the name, looks again, and finds it. A first call that arrives soon after
// a run which a retry has started takes that run as its own.
//
// Where there is a young run already, every retry is answered with a run. So a first call needs no name then, and
// many callers who say the same at once are not refused each other's.

const (
	retryHeader = "X-Stainless-Retry-Count"
	// retriesWithin is how old a run may be that answers a retry.
	retriesWithin = 15 * time.Minute
	// surelyFound is how old a run may be that answers all retries of a call that has just arrived.
	surelyFound = retriesWithin - time.Minute
	// overtaken is how long after a retry its first call may arrive.
	overtaken = 5 * time.Second
	// maxLooks bounds how often a call that is refused a name looks again.
	maxLooks = 8
)

// A Start is a call that starts a run.
type Start struct {
	Submission perdure.Submission
	Echo       shape.Echo
	Ignored    []string
	Digest     string
	// NewThread is set if the run gets a thread of its own.
	NewThread bool
}

// Digest tells calls apart: the same key, path and body have the same digest.
func Digest(c *doors.Call, raw []byte) string {
	h := sha256.New()
	for _, part := range [][]byte{[]byte(c.Key), []byte(c.URL.Path), raw} {
		h.Write([]byte(strconv.Itoa(len(part)) + ":"))
		h.Write(part)
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}

// Run starts the run of a call, or finds the one that the call has started before.
func (s *Start) Run(c *doors.Call) (*api.Run, error) {
	if err := s.check(); err != nil {
		return nil, err
	}
	if opts := c.Options(); len(opts) > 0 {
		return s.keyed(c, opts)
	}
	arrived := time.Now()
	retry, made, uses := Retries(c) > 0, false, false
	defer func() { s.dropThread(c, made && !uses) }()
	s.Echo.Call = "0:" + rand.Text()
	if retry {
		s.Echo.Call = "1:" + rand.Text()
	}
	for range maxLooks {
		before, err := s.newest(c)
		if err != nil {
			return nil, err
		}
		after := "first"
		if before != nil {
			after = shape.Bare(string(before.RunID))
			began := time.UnixMicro(int64(before.CreatedAt))
			found := retry && arrived.Sub(began) < retriesWithin ||
				!retry && retryMade(before) && arrived.Sub(began) < overtaken
			if found {
				return c.API.Get(c.Context(), before.RunID)
			}
		}
		if s.NewThread && !made {
			if err := s.makeThread(c, ""); err != nil {
				return nil, err
			}
			made = true
		}
		s.Submission.Name = shape.Name + ":" + s.Digest + ":" + after
		if !retry && before != nil && arrived.Sub(time.UnixMicro(int64(before.CreatedAt))) < surelyFound {
			s.Submission.Name = ""
		}
		run, err := s.start(c)
		if client.CodeOf(err) == perdure.CodeNameTaken {
			continue
		}
		uses = err == nil || doors.ProblemOf(err).Status >= http.StatusInternalServerError // or it is not known
		return run, err
	}
	return nil, perdure.Errorf(perdure.CodeUnavailable, "too many calls with this body at once; nothing was changed")
}

// check refuses what it can before a thread is made for the run.
func (s *Start) check() (err error) {
	checked := s.Submission
	if checked.Metadata, err = metadata(&s.Echo, s.Digest, s.Ignored); err != nil {
		return err
	}
	if s.NewThread {
		checked.ThreadID = "new"
	}
	return checked.Validate()
}

// Retries is how often the client has repeated a call, as it says itself.
func Retries(c *doors.Call) int {
	n, _ := strconv.Atoi(c.Header.Get(retryHeader))
	return n
}

// newest finds the newest run with the digest of the call.
func (s *Start) newest(c *doors.Call) (*api.Run, error) {
	page, err := c.API.List(c.Context(), client.Filter{Metadata: map[string]string{shape.DigestKey: s.Digest},
		Limit: 1})
	if err != nil || len(page.Runs) == 0 {
		return nil, err
	}
	return &page.Runs[0], nil
}

// retryMade tells whether a retry has started a run.
func retryMade(run *api.Run) bool {
	var e shape.Echo
	return json.Unmarshal([]byte(run.Metadata[shape.EchoKey]), &e) == nil && strings.HasPrefix(e.Call, "1:")
}

// start starts the run. Where the tenant has no names left, the run gets none: then a retry that
// overtakes its first call may start a second one.
func (s *Start) start(c *doors.Call, opts ...client.CallOptions) (run *api.Run, err error) {
	if s.Submission.Metadata, err = metadata(&s.Echo, s.Digest, s.Ignored); err != nil {
		return nil, err
	}
	run, err = c.API.Start(c.Context(), s.Submission, opts...)
	if s.Submission.Name != "" && client.CodeOf(err) == perdure.CodeQuota {
		s.Submission.Name = ""
		run, err = c.API.Start(c.Context(), s.Submission, opts...)
	}
	if err != nil {
		return nil, err
	}
	run.Input, run.Metadata = s.Submission.Input, s.Submission.Metadata
	s.Submission = perdure.Submission{} // it may be large, and the wait long
	return run, nil
}

// keyed starts a run whose caller has an idempotency key of its own. The same key gives the same body.
func (s *Start) keyed(c *doors.Call, opts []client.CallOptions) (*api.Run, error) {
	if s.NewThread {
		sum := sha256.Sum256([]byte(c.Key + "\x00" + opts[0].IdempotencyKey))
		if err := s.makeThread(c, shape.Name+":key:"+hex.EncodeToString(sum[:16])); err != nil {
			return nil, err
		}
	}
	s.Echo.Call = "0"
	return s.start(c, opts...)
}

// makeThread makes the thread of a run. Runs with the same idempotency key name it.
func (s *Start) makeThread(c *doors.Call, called string) error {
	t, err := c.API.CreateNamedThread(c.Context(), called, nil)
	if err != nil {
		return err
	}
	s.Submission.ThreadID = t.ThreadID
	return nil
}

// dropThread removes a thread that was made for nothing. A key that may not do that leaves it.
func (s *Start) dropThread(c *doors.Call, made bool) {
	if made {
		_ = c.API.DeleteThread(c.Context(), s.Submission.ThreadID)
	}
}

// CheckKind refuses a kind that there is not.
func CheckKind(c *doors.Call, kind string) error {
	_, err := c.KindOf(kind, func() (string, error) {
		_, err := c.API.Kind(c.Context(), kind)
		return kind, err
	})
	if client.CodeOf(err) == perdure.CodeNotFound {
		p := api.NewProblem("model_not_found", "there is no kind "+strconv.Quote(kind)+", or you may not see it",
			"model")
		p.Status = http.StatusNotFound
		return p
	}
	return err
}
