package runner

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/process/jobdir"
)

// Kind is the kind of runs that are commands.
const Kind = "exec"

// LocalQueue is the queue of runs that have a runner already. Pools don't take runs from it.
const LocalQueue = perdure.LocalQueue

// Codes of failures of a process, see docs/api.md#errors.
const (
	CodeSpec      perdure.Code = "spec_invalid"
	CodeEngine    perdure.Code = "engine_unknown"
	CodeWorkspace perdure.Code = "workspace_failed"
	CodeStart     perdure.Code = "not_started"
	CodeEnd       perdure.Code = "end_refused"
	CodeExit      perdure.Code = "exit_status"
	CodeKilled    perdure.Code = "killed"
	CodeSecret    perdure.Code = "secret_unknown"
)

// A Server says how the server is reached.
type Server struct {
	// URL has one address, or several with commas.
	URL string `json:"url"`
	Key string `json:"key"`
	// CA is the file of the authorities of its certificate. Empty: those of the system.
	CA string `json:"ca,omitempty"`
}

// A Job is what a process-runner is told. It has secrets, and is passed over a pipe only.
type Job struct {
	Server    Server `json:"server"`
	Workspace string `json:"workspace"`
	// RunID is the run to execute. Without it the runner waits for a run of the Queues.
	RunID  perdure.RunID `json:"run_id,omitempty"`
	Queues []string      `json:"queues,omitempty"`
	// Spec is the command of RunID. That of a run of a queue is its input.
	Spec Spec `json:"spec"`
	// Dir is the folder that the command starts in. Empty: the job's.
	Dir string `json:"dir,omitempty"`
	// Env is the environment of the command, or of a pool: its allowed part.
	Env []string `json:"env,omitempty"`
	// Secrets has the secrets of a pool, by name.
	Secrets map[string]string `json:"secrets,omitempty"`
	// Engines is a folder of engines.
	Engines string `json:"engines,omitempty"`
	// Grace is how long the command has between TERM and KILL.
	Grace time.Duration `json:"grace,omitempty"`
	// SentinelEvery is the time between two sentinels.
	SentinelEvery time.Duration `json:"sentinel_every,omitempty"`
	// GiveUpAfter is how long the runner waits for an answer of a server when its command has ended.
	GiveUpAfter time.Duration `json:"give_up_after,omitempty"`
	// Trust has the public keys of those who may sign runs, in PEM. Empty: signatures are not checked.
	Trust string `json:"trust,omitempty"`
	// MaxOutput bounds the bytes of each stream on the disk.
	MaxOutput int64 `json:"max_output,omitempty"`
	// Rows and Cols are the size of the terminal.
	Rows uint16 `json:"rows,omitempty"`
	Cols uint16 `json:"cols,omitempty"`
}

// A Spec is the input of a run of kind exec.
type Spec struct {
	Command []string `json:"command"`
	Engine  string   `json:"engine,omitempty"`
	// Session continues a session of the engine.
	Session string `json:"session,omitempty"`
	// SessionTokens is what the session has used before. Some engines count it again.
	SessionTokens jobdir.Tokens `json:"session_tokens,omitzero"`
	// Env is added to the environment that the runner allows.
	Env map[string]string `json:"env,omitempty"`
	// Secrets names variables, and the secrets of the runner that they get.
	Secrets map[string]string `json:"secrets,omitempty"`
	PTY     bool              `json:"pty,omitempty"`
	// Dir is the folder in which the command of a pool starts. Empty: the job's.
	Dir string `json:"dir,omitempty"`
	// StdinBytes is the size of the standard input that perdure exec has put into the job's folder. The
	// bytes themselves stay on that machine.
	StdinBytes int64 `json:"stdin_bytes,omitempty"`
}

// Validate checks a spec.
func (s *Spec) Validate() error {
	if len(s.Command) == 0 || s.Command[0] == "" {
		return errors.New("the command is missing: {\"command\": [\"program\", \"argument\"]}")
	}
	for _, arg := range s.Command {
		if strings.ContainsRune(arg, 0) {
			return errors.New("an argument of the command has a NUL")
		}
		if !utf8.ValidString(arg) {
			return fmt.Errorf("the argument %.80q is no UTF-8, and would be changed: put it into a script", arg)
		}
	}
	if !utf8.ValidString(s.Dir) {
		return fmt.Errorf("the folder %.200q is no UTF-8, and would be changed: start from another folder", s.Dir)
	}
	if s.StdinBytes < 0 || s.StdinBytes > jobdir.MaxStdin {
		return fmt.Errorf("stdin_bytes: %d does not lie between 0 and %d", s.StdinBytes, int64(jobdir.MaxStdin))
	}
	if s.Dir != "" && !filepath.IsAbs(s.Dir) || strings.ContainsRune(s.Dir, 0) {
		return errors.New("dir is no absolute path")
	}
	for _, names := range []map[string]string{s.Env, s.Secrets} {
		for name, value := range names {
			if name == "" || strings.ContainsAny(name, "=\x00") || strings.ContainsRune(value, 0) {
				return fmt.Errorf("%.80q is no name of a variable, or its value has a NUL", name)
			}
		}
	}
	return nil
}

// Defaults of a job.
const (
	defaultGrace         = 10 * time.Second
	defaultSentinelEvery = 30 * time.Second
	defaultMaxOutput     = 1 << 30
	// minMaxOutput keeps room for an artifact that is being sent, and for the next one.
	minMaxOutput = 4 * jobdir.SegmentMax
)

// fillIn sets the defaults.
func (j *Job) fillIn() {
	if j.Grace <= 0 {
		j.Grace = defaultGrace
	}
	if j.SentinelEvery <= 0 {
		j.SentinelEvery = defaultSentinelEvery
	}
	if j.GiveUpAfter <= 0 {
		j.GiveUpAfter = DefaultGiveUpAfter
	}
	if j.MaxOutput <= 0 {
		j.MaxOutput = defaultMaxOutput
	}
	j.MaxOutput = max(j.MaxOutput, minMaxOutput)
}

// Reports of a process-runner to its starter, in this order. A job that never started its command
// ends with Failed, and one that was taken away with Lost.
const (
	Leased  = "leased"  // it has a run
	Started = "started" // the command runs
	Ended   = "ended"   // the command has ended, and the result is on the disk
	Sending = "sending" // the server has accepted a part of the rest of the output
	Sent    = "sent"    // the server has accepted the end
	Failed  = "failed"  // the command was not started, or the end could not be reported
	Lost    = "lost"    // the server has ended the run, or given it to another runner

	// Notice has a Message for the person at the terminal. It may come at any time.
	Notice = "notice"
)

// A Report is a line that a process-runner writes to its starter.
type Report struct {
	Event    string        `json:"event"`
	RunID    perdure.RunID `json:"run_id,omitempty"`
	ExitCode int           `json:"exit_code,omitempty"`
	Code     perdure.Code  `json:"code,omitempty"`
	Message  string        `json:"message,omitempty"`
}

// Descriptors of a process-runner.
const (
	jobFD    = 3
	reportFD = 4
)

// A Process is a process-runner that was started.
type Process struct {
	cmd     *exec.Cmd
	job     *os.File
	reports *json.Decoder
	pipe    *os.File
}

// Start starts a process-runner, which waits for its job. Further files stay open in it, such as the
// lock of a slot.
func Start(more ...*os.File) (*Process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	keepFiles()
	jobRead, jobWrite, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer jobRead.Close()
	reportRead, reportWrite, err := os.Pipe()
	if err != nil {
		jobWrite.Close()
		return nil, err
	}
	defer reportWrite.Close()
	cmd := exec.Command(self, ProcessCommand)
	cmd.Args[0] = filepath.Base(self)
	cmd.Env = ownEnv() // the command's environment is in the job
	cmd.Dir = "/"      // the runner keeps no file system busy
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.ExtraFiles = append([]*os.File{jobRead, reportWrite}, more...)
	if err := cmd.Start(); err != nil {
		jobWrite.Close()
		reportRead.Close()
		return nil, fmt.Errorf("start the runner: %w", err)
	}
	return &Process{cmd: cmd, job: jobWrite, reports: json.NewDecoder(reportRead), pipe: reportRead}, nil
}

// keepFiles makes sure that programs which this process starts get no files but those that they are
// given. A shell may have left some open, such as a lock.
func keepFiles() {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return
	}
	for _, e := range entries {
		if fd, err := strconv.Atoi(e.Name()); err == nil && fd > 2 {
			syscall.CloseOnExec(fd)
		}
	}
}

// ownEnv returns the part of the environment that a process-runner needs for itself: for proxies,
// certificates and temporary files.
func ownEnv() (out []string) {
	for _, name := range []string{"PATH", "HOME", "TMPDIR", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy",
		"https_proxy", "no_proxy", "SSL_CERT_FILE", "SSL_CERT_DIR"} {
		if value, ok := os.LookupEnv(name); ok {
			out = append(out, name+"="+value)
		}
	}
	return out
}

// ProcessCommand is the hidden command of this program that is a process-runner.
const ProcessCommand = "process-runner"

// Give tells the process-runner its job.
func (p *Process) Give(j *Job) error {
	if err := json.NewEncoder(p.job).Encode(j); err != nil {
		return fmt.Errorf("the runner did not take its job: %w", err)
	}
	return nil
}

// Next returns the next report. It is io.EOF when the process-runner is gone.
func (p *Process) Next() (r Report, err error) {
	if err = p.reports.Decode(&r); err != nil && !errors.Is(err, os.ErrClosed) {
		err = io.EOF
	}
	return r, err
}

// Leave tells a process-runner that nobody waits for it. One that has no run yet ends.
func (p *Process) Leave() { p.job.Close() }

// Close gives up the reports. The process-runner goes on.
func (p *Process) Close() {
	p.job.Close()
	p.pipe.Close()
}

// Wait waits for the end of the process-runner.
func (p *Process) Wait() { _ = p.cmd.Wait() }
