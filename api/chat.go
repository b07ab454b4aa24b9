package api

import (
	"encoding/json"

	"github.com/perdure/perdure"
)

// SupervisorKind is the kind of the agent that a chat is with, unless the request names another.
const SupervisorKind = "supervisor"

// A Chat is a message of a user to the agent of a conversation. Without a ThreadID it begins one. With
// Wait, the answer comes when the agent has ended or when that time has passed.
type Chat struct {
	ThreadID perdure.ThreadID `json:"thread_id,omitempty"`
	// Message is the text, or any other content of a message.
	Message json.RawMessage  `json:"message"`
	Kind    string           `json:"kind,omitempty"`    // of the agent, SupervisorKind by default
	Timeout perdure.Duration `json:"timeout,omitempty"` // of a run that this message starts
	Wait    perdure.Duration `json:"wait,omitempty"`
	// Foreground says that the caller is about to follow the run, as in StartRun.
	Foreground bool `json:"foreground,omitempty"`
}

// Names in the metadata of messages of a thread: a question of the agent that a message in the chat
// answers, and an answer to it that was given elsewhere.
const (
	QuestionMetadata = "question"
	AnswerMetadata   = "answer"
)

// A ChatAnswer says which run answers a message, and has the answer if there is one already.
type ChatAnswer struct {
	ThreadID perdure.ThreadID `json:"thread_id"`
	RunID    perdure.RunID    `json:"run_id"`
	Started  bool             `json:"started"` // false: a live run takes the message up
	Status   string           `json:"status"`  // of the run; "deferred" with 202
	State    perdure.State    `json:"state"`
	Answer   json.RawMessage  `json:"answer,omitempty"`  // the result of a run that completed
	Error    *perdure.Failure `json:"error,omitempty"`   // of a run that did not
	Message  string           `json:"message,omitempty"` // with 202: an explanation for people

	LastSeq   int64  `json:"last_seq"` // number of the run's last event before the message
	AttachURL string `json:"attach_url"`
	StatusURL string `json:"status_url"`
}
