"""A hub on this machine: what the hub's own client calls to push and pull data sets and models.

Real HTTP, real client; the server keeps every commit's files in memory. Run in a thread.
"""

import base64
import hashlib
import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

TOKEN = "hf_test"


class Hub(ThreadingHTTPServer):
    """repositories: name -> {private, branches: {name: sha}, trees: {sha: {path: bytes}}}."""

    daemon_threads = True
    token = TOKEN

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.repositories = {}
        self.requests = []
        self.broken = set()  # paths whose content arrives changed
        self.forbidden = set()  # paths whose content does not arrive

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}"

    def files(self, name, revision="main"):
        repository = self.repositories[name]
        return repository["trees"][repository["branches"].get(revision, revision)]

    def commit(self, name, branch, files):
        repository = self.repositories[name]
        facts = [(path, hashlib.sha1(data).hexdigest()) for path, data in sorted(files.items())]
        sha = hashlib.sha1(json.dumps([len(repository["trees"]), facts]).encode()).hexdigest()
        repository["trees"][sha] = files
        repository["branches"][branch] = sha
        return sha


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def answer(self, body, status=200, **headers):
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def refuse(self, status, code, message):
        self.answer({"error": message}, status, X_Error_Code=code, X_Error_Message=message)

    def read(self):
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    @property
    def allowed(self):
        return self.headers.get("Authorization") == f"Bearer {TOKEN}"

    def repository(self, name):
        found = self.server.repositories.get(name)
        if found is None or (found["private"] and not self.allowed):
            self.refuse(401, "RepoNotFound", "Repository not found")
            return None
        return found

    def do_POST(self):
        body, path = self.read(), urlsplit(self.path).path
        if path == "/api/validate-yaml":
            return self.answer({"errors": [], "warnings": []})
        if not self.allowed:
            return self.refuse(401, "", "Invalid credentials")
        if path == "/api/repos/create":
            asked = json.loads(body)
            name = f"{asked['organization']}/{asked['name']}"
            kind = "datasets/" if asked.get("type") == "dataset" else ""
            url = f"{self.server.url}/{kind}{name}"
            if name in self.server.repositories:
                return self.answer({"url": url, "error": "You already created it"}, 409)
            private = asked.get("visibility") == "private" or asked.get("private") is True
            new = {"private": private, "branches": {}, "trees": {}}
            self.server.repositories[name] = new
            self.server.commit(name, "main", {".gitattributes": b"*.parquet filter=lfs\n"})
            return self.answer({"url": url})
        kind, owner, repo, verb, branch = path.removeprefix("/api/").split("/", 4)
        name, branch = f"{owner}/{repo}", unquote(branch)
        repository = self.repository(name)
        if repository is None:
            return None
        if verb == "branch":
            repository["branches"].setdefault(branch, repository["branches"]["main"])
            return self.answer({})
        if verb == "preupload":
            files = json.loads(body)["files"]
            modes = [
                {"path": f["path"], "uploadMode": "regular", "shouldIgnore": False} for f in files
            ]
            return self.answer({"files": modes})
        assert verb == "commit", path
        files = dict(self.server.files(name, branch))
        for line in map(json.loads, body.splitlines()):
            value = line["value"]
            if line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "deletedFile":
                del files[value["path"]]
        sha = self.server.commit(name, branch, files)
        url = f"{self.server.url}/{'datasets/' if kind == 'datasets' else ''}{name}"
        return self.answer({"commitUrl": url, "commitOid": sha})

    def do_GET(self):
        path = urlsplit(self.path).path
        self.server.requests.append(path)
        is_api = path.startswith("/api/")
        place = path.removeprefix("/api").removeprefix("/datasets").removeprefix("/models")
        owner, repo, *rest = place[1:].split("/", 4)
        name = f"{owner}/{repo}"
        repository = self.repository(name)
        if repository is None:
            return None
        revision = unquote(rest[1]) if rest else "main"
        sha = repository["branches"].get(revision, revision)
        if sha not in repository["trees"]:
            return self.refuse(404, "RevisionNotFound", "Invalid rev id")
        files = repository["trees"][sha]
        if is_api and (not rest or rest[0] == "revision"):
            siblings = [{"rfilename": file} for file in files]
            return self.answer({"id": name, "sha": sha, "siblings": siblings})
        if is_api:
            assert rest[0] == "tree", path
            listing = [
                {"type": "file", "path": file, "size": len(data), "oid": etag(data)}
                for file, data in files.items()
            ]
            return self.answer(listing)
        file = unquote("/".join(rest[2:]))
        data = files[file]
        if file in self.server.forbidden:
            return self.refuse(403, "", "Not now")
        if file in self.server.broken:
            data = data[:-1] + bytes([data[-1] ^ 1])
        return self.answer(data, ETag=f'"{etag(files[file])}"', X_Repo_Commit=sha)

    do_HEAD = do_GET


def etag(data):
    return hashlib.sha1(data).hexdigest()


@contextmanager
def running():
    """A hub in a thread, until the block ends."""
    hub = Hub()
    thread = threading.Thread(target=hub.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        hub.shutdown()
        hub.server_close()
        thread.join()
