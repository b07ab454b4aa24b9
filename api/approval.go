package api

import "github.com/perdure/perdure"

// Decide is the body of a decision about an approval.
type Decide = perdure.Decision

// Approvals is a page of approvals, oldest first.
type Approvals struct {
	Approvals  []perdure.Approval `json:"approvals"`
	NextCursor string             `json:"next_cursor,omitempty"`
}
