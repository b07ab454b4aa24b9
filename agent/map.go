package agent

type mapped struct {
	N        int    `json:"n"`
	Sum      string `json:"sum"`
	Stopped  bool   `json:"stopped,omitempty"`
	original int
}
