package jobdir

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/perdure/perdure"
)

// Values of Sentinel.Status: the activity of a command, as its engine's adaptor sees it.
const (
	StatusRunning    = "running"
	StatusWaiting    = "waiting"
	StatusProcessing = "processing"
)

// Time formats an instant as the files have it.
func Time(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z") }

// A Sentinel is the heartbeat of a runner.
type Sentinel struct {
	JobID         string           `json:"jobId"`
	Status        string           `json:"status"`
	LastHeartbeat string           `json:"lastHeartbeat"`
	WorkspacePath string           `json:"workspacePath"`
	SessionID     string           `json:"sessionId"`
	AgentEngine   string           `json:"agentEngine"`
	StartedAt     string           `json:"startedAt"`
	Counter       int64            `json:"counter"`
	Epoch         int64            `json:"epoch"`
	Tenant        perdure.TenantID `json:"tenant"`
	// WriteFailures counts the sentinels that the runner could not write.
	WriteFailures int64 `json:"writeFailures,omitempty"`
	// Lock is the [LockID] of the lock that the runner holds.
	Lock string `json:"lock"`
	MAC  string `json:"mac"`
}

// WriteSentinel signs a sentinel and replaces the file in one step, so that a reader sees the old or
// the new one. It does not sync: after a power loss the runner is gone anyway.
func (d Dir) WriteSentinel(s Sentinel, token string) error {
	b, err := sign(&s, &s.MAC, token)
	if err != nil {
		return err
	}
	return d.replace(SentinelFile, b, false)
}

// ReadSentinel reads a sentinel. It checks its shape and that it is this job's, but not its MAC: the
// token depends on the tenant and the epoch that it names.
func (d Dir) ReadSentinel() (Sentinel, error) {
	var s Sentinel
	b, err := d.read(SentinelFile, maxSentinel)
	if err != nil {
		return s, err
	}
	bad := func(format string, args ...any) (Sentinel, error) {
		return Sentinel{}, &BadFile{d.file(SentinelFile), fmt.Sprintf(format, args...)}
	}
	if err := strict(b, &s); err != nil {
		return bad("is no sentinel: %v", err)
	}
	switch {
	case s.JobID != d.ID:
		return bad("is of job %.100q", s.JobID)
	case filepath.Clean(s.WorkspacePath) != d.Path:
		return bad("was written in %.200q: the workspace was moved or copied", s.WorkspacePath)
	case s.Epoch < 1 || s.Counter < 0:
		return bad("has the epoch %d and the counter %d", s.Epoch, s.Counter)
	case s.Status != StatusRunning && s.Status != StatusWaiting && s.Status != StatusProcessing:
		return bad("has the status %.100q", s.Status)
	}
	return s, nil
}

// Sign returns the sentinel with its MAC.
func (s Sentinel) Sign(token string) Sentinel {
	_, _ = sign(&s, &s.MAC, token) // its fields can always be encoded
	return s
}

// Verify tells whether a sentinel was signed with the token.
func (s Sentinel) Verify(token string) bool { return verify(&s, &s.MAC, token) }

// A Result is the end of a job: the last commit of its run. A server that finds it after the
// runner is gone sends it as it is, so that it counts once.
type Result struct {
	JobID  string           `json:"jobId"`
	Tenant perdure.TenantID `json:"tenant"`
	Commit perdure.Commit   `json:"commit"`
	// Output is what the output files have. It goes to the log before the commit.
	Output     Offsets `json:"output"`
	FinishedAt string  `json:"finishedAt"`
	MAC        string  `json:"mac"`
}

// WriteResult signs a result and writes it durably: file and folder are synced.
func (d Dir) WriteResult(r Result, token string) error {
	b, err := sign(&r, &r.MAC, token)
	if err != nil {
		return err
	}
	return d.replace(ResultFile, b, true)
}

// ReadResult reads a result. It checks its shape and that it is this job's, but not its MAC.
func (d Dir) ReadResult() (Result, error) {
	var r Result
	b, err := d.read(ResultFile, maxResult)
	if err != nil {
		return r, err
	}
	// Validate fills in defaults, which would change what the MAC covers: it gets a copy.
	var copied Result
	if err = strict(b, &r); err == nil {
		if err = strict(b, &copied); err == nil {
			err = copied.Commit.Validate()
		}
	}
	switch {
	case err != nil:
		return Result{}, &BadFile{d.file(ResultFile), "is no result: " + err.Error()}
	case r.JobID != d.ID || string(r.Commit.RunID) != d.ID:
		return Result{}, &BadFile{d.file(ResultFile), fmt.Sprintf("is of job %.100q", r.JobID)}
	case r.Commit.Outcome == nil:
		return Result{}, &BadFile{d.file(ResultFile), "has no outcome"}
	}
	return r, nil
}

// Sign returns the result with its MAC.
func (r Result) Sign(token string) Result {
	_, _ = sign(&r, &r.MAC, token) // without a MAC, it is not valid
	return r
}

// Verify tells whether a result was signed with the token.
func (r Result) Verify(token string) bool { return verify(&r, &r.MAC, token) }

// strict decodes JSON that has no unknown fields and nothing after it.
func strict(b []byte, into any) error {
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.DisallowUnknownFields()
	if err := dec.Decode(into); err != nil {
		return err
	}
	if dec.More() {
		return fmt.Errorf("something follows")
	}
	return nil
}

// sign sets the MAC of a value, over its JSON with an empty MAC, and returns the whole as JSON.
func sign(v any, field *string, token string) ([]byte, error) {
	*field = ""
	b, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	*field = mac(b, token)
	return json.Marshal(v)
}

// verify checks the MAC of a value.
func verify(v any, field *string, token string) bool {
	have := *field
	*field = ""
	b, err := json.Marshal(v)
	return err == nil && token != "" && hmac.Equal([]byte(have), []byte(mac(b, token)))
}

func mac(b []byte, token string) string {
	h := hmac.New(sha256.New, []byte(token))
	h.Write(b)
	return hex.EncodeToString(h.Sum(nil))
}

// tempSuffix is that of a file which is about to replace another.
const tempSuffix = ".tmp"

// replace writes a file of the job under another name and renames it. With durable, file and folder
// are synced.
func (d Dir) replace(name string, b []byte, durable bool) error {
	temp := d.file(name + tempSuffix)
	// A link that the command put there must not be followed.
	if err := os.Remove(temp); err != nil && !os.IsNotExist(err) {
		return err
	}
	f, err := os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err == nil && durable {
		err = f.Sync()
	}
	if e := f.Close(); err == nil {
		err = e
	}
	if err == nil {
		err = os.Rename(temp, d.file(name))
	}
	if err != nil {
		os.Remove(temp)
		return err
	}
	if !durable {
		return nil
	}
	folder, err := os.Open(d.Path)
	if err != nil {
		return err
	}
	defer folder.Close()
	return folder.Sync()
}
