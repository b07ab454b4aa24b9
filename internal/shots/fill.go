package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"time"
)

// A filler fills a server by its HTTP API, with a worker of its own.
type filler struct {
	url, key, hook string
	commits        int
	// held are the runs that its workers execute as long as pictures are taken.
	held []holding
	// run is a run with a long story, failed a dead letter, and thread a conversation.
	run, failed, thread string
}

type obj = map[string]any

// A holding is a run that a worker executes.
type holding struct {
	worker   string
	run      run
	activity string
	progress any
}

// stayAlive beats for the held runs until the context ends.
func (f *filler) stayAlive(ctx context.Context) {
	for {
		for _, h := range f.held {
			_ = f.beat(ctx, h.worker, h.run, h.activity, h.progress) // a later picture shows what is lost
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(4 * time.Second):
		}
	}
}

// call makes a call and decodes its answer.
func (f *filler) call(ctx context.Context, method, path string, body any, into any) error {
	var b bytes.Buffer
	if body != nil {
		if err := json.NewEncoder(&b).Encode(body); err != nil {
			return err
		}
	}
	req, err := http.NewRequestWithContext(ctx, method, f.url+path, &b)
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+f.key)
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		return err
	}
	if res.StatusCode >= 300 {
		return fmt.Errorf("%s %s: %d %s", method, path, res.StatusCode, text)
	}
	if into == nil {
		return nil
	}
	return json.Unmarshal(text, into)
}

type run struct {
	RunID    string `json:"run_id"`
	Epoch    int64  `json:"epoch"`
	ThreadID string `json:"thread_id"`
	Kind     string `json:"kind"`
}

// start starts a run.
func (f *filler) start(ctx context.Context, kind string, more obj) (run, error) {
	body := obj{"kind": kind}
	for k, v := range more {
		body[k] = v
	}
	var r run
	err := f.call(ctx, "POST", "/api/v1/runs", body, &r)
	return r, err
}

// grant takes the next run of a kind for a worker.
func (f *filler) grant(ctx context.Context, worker, kind string, more obj) (run, error) {
	body := obj{"queues": []string{"default", "slow", "deploys"}, "kinds": []string{kind}, "slots": 1, "start": true,
		"wait": "5s", "build": "v1.4.2"}
	for k, v := range more {
		body[k] = v
	}
	runs, err := f.poll(ctx, worker, body)
	if err == nil && len(runs) == 0 {
		return run{}, fmt.Errorf("no run of kind %s came", kind)
	}
	if err != nil {
		return run{}, err
	}
	return runs[0], nil
}

func (f *filler) poll(ctx context.Context, worker string, body obj) ([]run, error) {
	var polled struct {
		Runs []run `json:"runs"`
	}
	err := f.call(ctx, "POST", "/api/v1/workers/"+worker+"/poll", body, &polled)
	return polled.Runs, err
}

// commit says what a worker did with a run.
func (f *filler) commit(ctx context.Context, worker string, r run, parts obj) error {
	f.commits++
	body := obj{"commit_id": fmt.Sprintf("c%d", f.commits), "run_id": r.RunID, "epoch": r.Epoch}
	for k, v := range parts {
		body[k] = v
	}
	return f.call(ctx, "POST", "/api/v1/workers/"+worker+"/commit", obj{"commits": []obj{body}}, nil)
}

func (f *filler) beat(ctx context.Context, worker string, r run, activity string, progress any) error {
	b := obj{"run_id": r.RunID, "epoch": r.Epoch, "activity": activity}
	if progress != nil {
		b["progress"] = progress
	}
	return f.call(ctx, "POST", "/api/v1/workers/"+worker+"/heartbeat", obj{"runs": []obj{b}}, nil)
}

// fill plays the day.
func (f *filler) fill(ctx context.Context) error {
	for _, scene := range []func(context.Context) error{
		f.webhooks, f.ended, f.deadLetters, f.approvals, f.keys, f.chat, f.busy, f.research,
	} {
		if err := scene(ctx); err != nil {
			return err
		}
	}
	return nil
}

// ended makes runs that have ended well, and one that was cancelled.
func (f *filler) ended(ctx context.Context) error {
	for i, host := range []string{"cube", "atlas", "fern", "cube", "moss", "atlas", "reed", "fern", "cube", "pine"} {
		if _, err := f.start(ctx, "disk-report", obj{"input": obj{"host": host, "depth": 2},
			"metadata": obj{"host": host, "team": "platform"}}); err != nil {
			return err
		}
		r, err := f.grant(ctx, "worker-1", "disk-report", nil)
		if err != nil {
			return err
		}
		if err := f.beat(ctx, "worker-1", r, "df", nil); err != nil {
			return err
		}
		out := obj{"outcome": obj{"type": "complete", "result": obj{"host": host, "used": "45%", "largest": "/var/log"},
			"summary": fmt.Sprintf("%s: %d %% of the disk is used", host, 40+i*3)}}
		if err := f.commit(ctx, "worker-1", r, out); err != nil {
			return err
		}
	}
	r, err := f.start(ctx, "nightly-backup", obj{"queue": "slow", "metadata": obj{"team": "platform"}})
	if err != nil {
		return err
	}
	return f.call(ctx, "POST", "/api/v1/runs/"+r.RunID+"/cancel", obj{"reason": "the window is over"}, nil)
}

// deadLetters makes runs that have failed for a few reasons.
func (f *filler) deadLetters(ctx context.Context) error {
	for i, cause := range []struct{ kind, code, message string }{
		{"invoice", "smtp_refused", "550 mailbox unavailable: billing@example.com"},
		{"invoice", "smtp_refused", "550 mailbox unavailable: accounts@example.com"},
		{"invoice", "smtp_refused", "421 too many connections from this host"},
		{"translate", "model_refused", "the model has refused: context of 131072 tokens exceeded"},
		{"crawl", "exit_status", "exit status 137"},
		{"crawl", "exit_status", "exit status 137"},
	} {
		if _, err := f.start(ctx, cause.kind, obj{"input": obj{"n": i}, "max_attempts": 1,
			"metadata": obj{"customer": fmt.Sprintf("c-%d", 100+i)}}); err != nil {
			return err
		}
		r, err := f.grant(ctx, "worker-2", cause.kind, nil)
		if err != nil {
			return err
		}
		if err := f.commit(ctx, "worker-2", r, obj{
			"journal": []obj{{"key": "prepare#1", "value": obj{"ok": true}}},
			"events":  []obj{{"type": "worker:tool_started", "data": obj{"tool": "send", "key": "send#1"}}},
			"outcome": obj{"type": "fail", "error": obj{"code": cause.code, "message": cause.message}}}); err != nil {
			return err
		}
	}
	return nil
}

// approvals makes runs that wait for a person.
func (f *filler) approvals(ctx context.Context) error {
	for _, a := range []struct {
		title  string
		action obj
		form   []obj
	}{
		{"Push 3 commits to main?",
			obj{"push": obj{"branch": "main", "commits": []string{"4f2a9c", "91d7e0", "c03b55"}}},
			[]obj{{"name": "region", "label": "Where first?", "type": "choice", "options": []string{"eu", "us"},
				"required": true}, {"name": "note", "label": "A note for the log", "type": "text"}}},
		{"Delete 412 objects below s3://old-exports?", obj{"delete": obj{"bucket": "old-exports", "objects": 412,
			"bytes": json.Number("98234723947239472")}}, nil},
	} {
		if _, err := f.start(ctx, "deploy", obj{"queue": "deploys", "metadata": obj{"team": "web"}}); err != nil {
			return err
		}
		r, err := f.grant(ctx, "deployer", "deploy", nil)
		if err != nil {
			return err
		}
		approval := obj{"title": a.title, "action": a.action, "default": "reject"}
		if a.form != nil {
			approval["form"] = a.form
		}
		if err := f.commit(ctx, "deployer", r, obj{"waits": []obj{{"id": "push", "type": "approval",
			"name": "approve_push", "timeout": "8m", "approval": approval}},
			"outcome": obj{"type": "suspend"}}); err != nil {
			return err
		}
	}
	return nil
}

// webhooks registers an endpoint that answers, and one that does not.
func (f *filler) webhooks(ctx context.Context) error {
	for _, w := range []obj{
		{"url": f.hook, "events": []string{"run:*"}, "description": "chat of the team"},
		{"url": "https://pager.example.com/v2/enqueue", "events": []string{"run:failed", "run:stale"},
			"description": "pager"},
	} {
		if err := f.call(ctx, "POST", "/api/v1/webhooks", w, nil); err != nil {
			return err
		}
	}
	return nil
}

func (f *filler) keys(ctx context.Context) error {
	for name, scopes := range map[string][]string{"ada": {"runs:read", "runs:approve"},
		"workers": {"worker:poll", "worker:report"}, "ci": {"runs:create", "runs:read"}} {
		if err := f.call(ctx, "POST", "/api/v1/keys", obj{"name": name, "scopes": scopes}, nil); err != nil {
			return err
		}
	}
	return f.call(ctx, "POST", "/api/admin/tenants/acme/keys", obj{"name": "acme", "scopes": []string{"runs:read"}},
		nil)
}

// chat has a conversation with the scripted supervisor of perdure dev, and one whose text is hostile.
func (f *filler) chat(ctx context.Context) error {
	if err := f.call(ctx, "POST", "/api/v1/chat", obj{"message": "check disk space", "wait": "20s"}, nil); err != nil {
		return err
	}
	var thread struct {
		ThreadID string `json:"thread_id"`
	}
	title := obj{"metadata": obj{"title": "Who writes the most logs?"}}
	if err := f.call(ctx, "POST", "/api/v1/threads", title, &thread); err != nil {
		return err
	}
	f.thread = thread.ThreadID
	for _, m := range []obj{
		{"role": "user", "content": "How full are the disks?"},
		{"role": "assistant", "content": "Three hosts are above **60 %**:\n\n" +
			"| host | used | largest folder |\n| --- | --- | --- |\n| cube | 64 % | `/var/log` |\n" +
			"| atlas | 61 % | `/srv/images` |\n| fern | 61 % | `/var/log` |\n\n" +
			"Two of them fill up with logs. Shall I find out which service writes them?"},
		{"role": "user", "content": "Yes. Which of our services wrote the most logs last week?"},
	} {
		if err := f.call(ctx, "POST", "/api/v1/threads/"+f.thread+"/messages", m, nil); err != nil {
			return err
		}
	}
	hostile := "<script>document.title = 'owned'</script> <img src=x onerror=alert(1)> \x1b[31mred\x1b[0m " +
		"invoice\u202efdp.exe and a very long line: "
	for range 6000 {
		hostile += "padding "
	}
	_, err := f.start(ctx, "hostile", obj{"input": obj{"text": hostile}, "metadata": obj{"note": "<b>bold</b>"}})
	return err
}

// busy makes queued and running runs.
func (f *filler) busy(ctx context.Context) error {
	for i := range 8 {
		kind := []string{"summarize", "translate", "embed"}[i%3]
		if _, err := f.start(ctx, kind, obj{"input": obj{"page": i},
			"metadata": obj{"book": "moby-dick"}}); err != nil {
			return err
		}
	}
	if _, err := f.start(ctx, "report", obj{"wait": "10ms", "input": obj{"host": "cube"}}); err != nil {
		return err
	}
	for i, activity := range []string{"llm_thinking", "tool_executing: grep -r durable", "streaming"} {
		kind := []string{"summarize", "translate", "embed"}[i]
		r, err := f.grant(ctx, fmt.Sprintf("worker-%d", i+1), kind, nil)
		if err != nil {
			return err
		}
		h := holding{fmt.Sprintf("worker-%d", i+1), r, activity, obj{"done": 0.2 + 0.3*float64(i)}}
		if err := f.beat(ctx, h.worker, r, activity, h.progress); err != nil {
			return err
		}
		f.held = append(f.held, h)
	}
	return nil
}

// said has the texts that the run of the pictures writes after each step.
var said = map[string]string{
	"list_services": "There are 14 services. ",
	"read_logs":     "The logs of cube, atlas and fern have the most lines, so I have a worker scan each.\n\n",
	"compare":       "`billing` wrote 61 % of them, most of it the same warning about a retry. ",
	"write_answer":  "It began on Tuesday, with the release of 1.4.2. ",
}

// research is the run of the pictures: it fails once, waits for children and a signal, is handed
// back and taken again, and is still running.
func (f *filler) research(ctx context.Context) error {
	pause := func() { time.Sleep(600 * time.Millisecond) }
	if _, err := f.start(ctx, "research", obj{"class": "agent", "wait": "10ms", "timeout": "5m", "thread_id": f.thread,
		"input":    obj{"question": "Which of our services wrote the most logs last week?", "services": 14},
		"metadata": obj{"team": "platform", "asked_by": "ada"}}); err != nil {
		return err
	}
	pause()
	// A worker takes it and is not heard from, so that another one gets it.
	if _, err := f.grant(ctx, "agent-3", "research", obj{"start": false}); err != nil {
		return err
	}
	time.Sleep(5200 * time.Millisecond)
	w := "agent-7"
	r, err := f.grant(ctx, w, "research", nil)
	if err != nil {
		return err
	}
	work := func() { time.Sleep(1500 * time.Millisecond) }
	steps := func(names ...string) error {
		for _, name := range names {
			if err := f.beat(ctx, w, r, "tool_executing: "+name, nil); err != nil {
				return err
			}
			if err := f.commit(ctx, w, r, obj{"events": []obj{{"type": "worker:tool_started",
				"data": obj{"tool": name, "key": name + "#1"}}}}); err != nil {
				return err
			}
			work()
			if err := f.commit(ctx, w, r, obj{"journal": []obj{{"key": name + "#1", "value": obj{"rows": 128}}},
				"events": []obj{{"type": "worker:tool_completed", "data": obj{"tool": name, "key": name + "#1"}},
					{"type": "llm:delta", "data": obj{"text": said[name]}}}}); err != nil {
				return err
			}
		}
		return nil
	}
	if err := steps("list_services", "read_logs"); err != nil {
		return err
	}
	if err := f.commit(ctx, w, r, obj{"outcome": obj{"type": "fail",
		"error": obj{"code": "model_unavailable", "message": "503 of the model's server"}}}); err != nil {
		return err
	}
	if r, err = f.grant(ctx, w, "research", obj{"wait": "30s"}); err != nil {
		return err
	}
	if err := steps("count_lines"); err != nil {
		return err
	}
	var children []obj
	var keys []string
	for _, host := range []string{"cube", "atlas", "fern"} {
		keys = append(keys, "scan-"+host)
		children = append(children, obj{"key": "scan-" + host, "kind": "scan-logs", "input": obj{"host": host}})
	}
	if err := f.commit(ctx, w, r, obj{"children": children,
		"waits":   []obj{{"id": "scans", "type": "children", "keys": keys}},
		"outcome": obj{"type": "suspend"}}); err != nil {
		return err
	}
	pause()
	for i := range keys {
		who := fmt.Sprintf("worker-%d", i+1)
		child, err := f.grant(ctx, who, "scan-logs", nil)
		if err != nil {
			return err
		}
		if err := f.beat(ctx, who, child, "scanning", obj{"done": 0.5}); err != nil {
			return err
		}
		work()
		if err := f.commit(ctx, who, child, obj{"outcome": obj{"type": "complete",
			"result": 1000 * (i + 1)}}); err != nil {
			return err
		}
	}
	if r, err = f.grant(ctx, w, "research", nil); err != nil {
		return err
	}
	if err := steps("compare"); err != nil {
		return err
	}
	if err := f.call(ctx, "POST", "/api/v1/runs/"+r.RunID+"/signals/start_task", obj{"data": obj{"by": "ada"}},
		nil); err != nil {
		return err
	}
	if err := f.call(ctx, "POST", "/api/v1/workers/"+w+"/release", obj{"runs": []obj{{"run_id": r.RunID,
		"epoch": r.Epoch}}}, nil); err != nil {
		return err
	}
	pause()
	w = "agent-9"
	if r, err = f.grant(ctx, w, "research", nil); err != nil {
		return err
	}
	if err := steps("write_answer", "check_answer"); err != nil {
		return err
	}
	f.held = append(f.held, holding{w, r, "tool_executing: write_summary", nil})
	return f.commit(ctx, w, r, obj{"events": []obj{{"type": "worker:tool_started",
		"data": obj{"tool": "write_summary", "key": "write_summary#1"}}}})
}

// find looks for the ids that the pictures are of.
func (f *filler) find(ctx context.Context) error {
	var list struct {
		Runs []run `json:"runs"`
	}
	if err := f.call(ctx, "GET", "/api/v1/runs?kind=research&limit=1", nil, &list); err != nil {
		return err
	}
	if len(list.Runs) > 0 {
		f.run, f.thread = list.Runs[0].RunID, list.Runs[0].ThreadID
	}
	if err := f.call(ctx, "GET", "/api/v1/runs?status=failed&limit=1", nil, &list); err != nil {
		return err
	}
	if len(list.Runs) > 0 {
		f.failed = list.Runs[0].RunID
	}
	return nil
}
