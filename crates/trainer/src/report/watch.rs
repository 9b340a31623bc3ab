//! `megatrain watch`: shows a run's page in a browser on this machine while the run goes on.
//!
//! A server for one person: it listens on the loopback interface alone, answers GET, and knows three paths. A path is looked
//! up, never joined to a folder, so none leads outside. The page asks for the lines that `metrics.jsonl` has got since.

use super::page;
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::fs::File;
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Seek, SeekFrom, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Where the page is unless asked otherwise.
pub const DEFAULT_PORT: u16 = 7117;

/// Requests that are answered at the same time; a browser opens six.
const MAX_CONNECTIONS: usize = 64;

/// Of a request's line and headers.
const MAX_HEAD_BYTES: u64 = 16 << 10;

/// Of `metrics.jsonl` in one answer; the rest is asked for next.
const MAX_PART_BYTES: u64 = 8 << 20;

/// How long a browser may take to send a request or to take an answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// Serves a run's output folder.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    folder: Arc<PathBuf>,
}

impl Server {
    /// Listens on this port of the loopback interface; 0 for any that is free.
    ///
    /// # Errors
    /// No such folder, or a port that is taken or not allowed.
    pub fn bind(folder: &Path, port: u16) -> Result<Server> {
        let shown = folder.display();
        if !folder.exists() {
            bail!(
                "there is no folder {shown}; give the folder that `megatrain train --out` writes to (default: out). A run \
                 makes it once its data is read and its model is loaded"
            );
        }
        if !folder.is_dir() {
            bail!("{shown} is a file; give the folder that `megatrain train --out` writes to");
        }
        let folder = Arc::new(folder.canonicalize().with_context(|| format!("opening the folder {shown}"))?);
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).map_err(|error| match error.kind() {
            ErrorKind::AddrInUse => anyhow::anyhow!(
                "port {port} is in use, perhaps by another `megatrain watch`; give another with --port, or 0 for any that is free"
            ),
            ErrorKind::PermissionDenied => {
                anyhow::anyhow!("port {port} is not for everyone to use; give one from 1024 on with --port")
            }
            _ => anyhow::anyhow!("listening on port {port} of this machine: {error}"),
        })?;
        Ok(Server { listener, folder })
    }

    /// Where the page is.
    ///
    /// # Errors
    /// If the system does not tell.
    pub fn url(&self) -> Result<String> {
        Ok(format!("http://{}/", self.listener.local_addr()?))
    }

    /// Answers requests until the process ends.
    ///
    /// # Errors
    /// If the system stops taking connections.
    pub fn serve(&self) -> Result<()> {
        let open = Arc::new(AtomicUsize::new(0));
        loop {
            let stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                // The browser went away before it was answered.
                Err(error) if matches!(error.kind(), ErrorKind::ConnectionAborted | ErrorKind::Interrupted) => continue,
                Err(error) => return Err(error).context("waiting for a browser"),
            };
            if open.fetch_add(1, Ordering::Relaxed) >= MAX_CONNECTIONS {
                open.fetch_sub(1, Ordering::Relaxed);
                continue;
            }
            let (folder, open) = (self.folder.clone(), open.clone());
            std::thread::spawn(move || {
                // A browser that goes away in the middle is no fault of anybody's.
                let _ = connection(stream, &folder);
                open.fetch_sub(1, Ordering::Relaxed);
            });
        }
    }
}

/// Reads one request and answers it.
fn connection(mut stream: TcpStream, folder: &Path) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut head = Vec::new();
    let mut reader = BufReader::new(&stream).take(MAX_HEAD_BYTES);
    loop {
        let begin = head.len();
        if reader.read_until(b'\n', &mut head)? == 0 || matches!(&head[begin..], b"\r\n" | b"\n") {
            break;
        }
    }
    let answer = match head.ends_with(b"\n\r\n") || head.ends_with(b"\n\n") {
        true => answer(&String::from_utf8_lossy(&head), folder),
        false => Answer::refusal(400, "this is no HTTP request, or its headers are too long"),
    };
    let Answer { status, kind, body, head_only } = answer;
    let reason = match status {
        200 => "OK",
        400 => "Bad Request",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        416 => "Range Not Satisfiable",
        _ => "Internal Server Error",
    };
    write!(
        stream,
        "HTTP/1.1 {status} {reason}\r\nContent-Type: {kind}; charset=utf-8\r\nContent-Length: {}\r\nCache-Control: no-store\r\n\
         X-Content-Type-Options: nosniff\r\nX-MegaTrain: watch\r\nAllow: GET, HEAD\r\nConnection: close\r\n\r\n",
        body.len()
    )?;
    if !head_only {
        stream.write_all(&body)?;
    }
    // Closing with bytes unread would reset the connection, and the answer could be lost.
    stream.shutdown(Shutdown::Write)?;
    io::copy(&mut stream.take(1 << 20), &mut io::sink()).map(|_| ())
}

struct Answer {
    status: u16,
    kind: &'static str,
    body: Vec<u8>,
    head_only: bool,
}

impl Answer {
    fn new(kind: &'static str, body: impl Into<Vec<u8>>) -> Answer {
        Answer { status: 200, kind, body: body.into(), head_only: false }
    }

    fn refusal(status: u16, text: &str) -> Answer {
        Answer { status, kind: "text/plain", body: format!("{text}\n").into(), head_only: false }
    }
}

fn answer(head: &str, folder: &Path) -> Answer {
    let mut lines = head.lines();
    let mut words = lines.next().unwrap_or_default().split(' ');
    let (Some(method), Some(target), Some(version)) = (words.next(), words.next(), words.next()) else {
        return Answer::refusal(400, "this is no HTTP request");
    };
    if !version.starts_with("HTTP/1.") {
        return Answer::refusal(400, "this server speaks HTTP/1.1");
    }
    // A page from elsewhere may give its own name this machine's address; the browser then tells that name.
    let host = lines.filter_map(|line| line.split_once(':')).find(|(name, _)| name.eq_ignore_ascii_case("host"));
    if !host.is_some_and(|(_, host)| is_this_machine(host.trim())) {
        return Answer::refusal(403, "ask for localhost or 127.0.0.1: a run is shown on its own machine alone");
    }
    if !matches!(method, "GET" | "HEAD") {
        return Answer::refusal(405, "only GET");
    }
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let answer = match path {
        "/" | "/report.html" => report(folder),
        "/metrics.jsonl" => metrics(folder, query),
        _ => Ok(Answer::refusal(404, "there is only / here, and /metrics.jsonl")),
    };
    let answer = answer.unwrap_or_else(|error| Answer::refusal(500, &format!("{path}: {error}")));
    Answer { head_only: method == "HEAD", ..answer }
}

/// Whether a `Host` header names the loopback interface. The port may be another one: people forward ports.
fn is_this_machine(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(v6) => v6.split(']').next(),
        None => host.split(':').next(),
    };
    name.is_some_and(|name| ["localhost", "127.0.0.1", "::1"].iter().any(|known| name.eq_ignore_ascii_case(known)))
}

/// The run's page, or one that waits for it.
fn report(folder: &Path) -> io::Result<Answer> {
    let mut html = Vec::new();
    match open_in(folder, super::PAGE)? {
        Some(mut file) => file.read_to_end(&mut html)?,
        None => html.write(page::html(&Value::Null).as_bytes())?,
    };
    Ok(Answer::new("text/html", html))
}

/// Whole lines of the metrics, from the byte `from=` on.
fn metrics(folder: &Path, query: &str) -> io::Result<Answer> {
    let from = match query.split('&').find_map(|pair| pair.strip_prefix("from=")).unwrap_or("0").parse::<u64>() {
        Ok(from) => from,
        Err(_) => return Ok(Answer::refusal(400, "`from` is a number of bytes")),
    };
    let mut lines = Vec::new();
    let mut len = 0;
    if let Some(mut file) = open_in(folder, "metrics.jsonl")? {
        len = file.metadata()?.len();
        file.seek(SeekFrom::Start(from))?;
        file.take(MAX_PART_BYTES).read_to_end(&mut lines)?;
    }
    if from > len {
        return Ok(Answer::refusal(416, "the file is shorter than that: another run has begun"));
    }
    // The last line may be in the middle of being written.
    lines.truncate(lines.iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1));
    Ok(Answer::new("application/x-ndjson", lines))
}

/// Opens a file of the folder; none if there is none, or if it is a link that leads out.
fn open_in(folder: &Path, name: &str) -> io::Result<Option<File>> {
    let path = match folder.join(name).canonicalize() {
        Ok(path) => path,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    if !path.starts_with(folder) {
        return Ok(None);
    }
    File::open(path).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Site {
        dir: tempfile::TempDir,
        url: String,
    }

    impl Site {
        /// A folder `out` beside a file that nobody may see.
        fn new() -> Site {
            let dir = tempfile::tempdir().unwrap();
            std::fs::create_dir(dir.path().join("out")).unwrap();
            std::fs::write(dir.path().join("secret.txt"), "secret").unwrap();
            std::fs::write(dir.path().join("out/other.txt"), "secret").unwrap();
            let server = Server::bind(&dir.path().join("out"), 0).unwrap();
            let url = server.url().unwrap();
            std::thread::spawn(move || server.serve());
            Site { dir, url }
        }

        fn write(&self, name: &str, text: &str) {
            std::fs::write(self.dir.path().join("out").join(name), text).unwrap();
        }

        fn send(&self, request: &str) -> (u16, String) {
            let address = self.url.strip_prefix("http://").unwrap().trim_end_matches('/');
            let mut stream = TcpStream::connect(address).unwrap();
            stream.write_all(request.as_bytes()).unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).unwrap();
            let (head, body) = answer.split_once("\r\n\r\n").unwrap();
            assert!(head.contains(&format!("Content-Length: {}", body.len())) || request.starts_with("HEAD"), "{head}");
            (head[9..12].parse().unwrap(), body.to_owned())
        }

        fn get(&self, target: &str) -> (u16, String) {
            self.send(&format!("GET {target} HTTP/1.1\r\nHost: localhost:1\r\nAccept: */*\r\n\r\n"))
        }
    }

    #[test]
    fn a_run_that_has_not_begun_is_waited_for() {
        let site = Site::new();
        let (status, html) = site.get("/");
        assert_eq!(status, 200);
        assert!(html.contains(r#"<script id="data" type="application/json">null</script>"#));
        assert_eq!(site.get("/metrics.jsonl?from=0"), (200, String::new()));
        site.write(super::super::PAGE, "<p>the page");
        assert_eq!(site.get("/"), (200, "<p>the page".into()));
        assert_eq!(site.get("/report.html?x=1"), (200, "<p>the page".into()));
    }

    #[test]
    fn lines_are_served_whole_from_any_byte_on() {
        let site = Site::new();
        site.write("metrics.jsonl", "{\"step\":1}\n{\"step\":2}\n{\"st");
        assert_eq!(site.get("/metrics.jsonl"), (200, "{\"step\":1}\n{\"step\":2}\n".into()));
        assert_eq!(site.get("/metrics.jsonl?from=11"), (200, "{\"step\":2}\n".into()));
        assert_eq!(site.get("/metrics.jsonl?from=22"), (200, String::new()));
        assert_eq!(site.get("/metrics.jsonl?from=1000").0, 416);
        for from in ["-1", "x", "99999999999999999999", ""] {
            assert_eq!(site.get(&format!("/metrics.jsonl?from={from}")).0, 400, "{from}");
        }
        assert_eq!(site.send("HEAD / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"), (200, String::new()));
    }

    #[test]
    fn no_path_leads_out_of_the_folder() {
        let site = Site::new();
        let paths = "/../secret.txt /%2e%2e/secret.txt /..%2fsecret.txt //etc/passwd /etc/passwd /metrics.jsonl/../../secret.txt \
                     ../secret.txt /..\\secret.txt /other.txt /. /.. /out file:///etc/passwd /metrics.jsonl%00";
        for path in paths.split_whitespace() {
            let (status, body) = site.get(path);
            assert_eq!(status, 404, "{path}");
            assert!(!body.contains("secret"), "{path}");
        }
        #[cfg(unix)]
        for name in ["metrics.jsonl", super::super::PAGE] {
            std::os::unix::fs::symlink(site.dir.path().join("secret.txt"), site.dir.path().join("out").join(name))
                .unwrap();
            assert!(!site.get(&format!("/{name}")).1.contains("secret"), "{name}");
        }
    }

    #[test]
    fn what_is_no_request_of_a_browser_here_is_refused() {
        let site = Site::new();
        let status = |request: &str| site.send(request).0;
        assert_eq!(status("GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n"), 403);
        assert_eq!(status("GET / HTTP/1.1\r\nHost: localhost.evil.example\r\n\r\n"), 403);
        assert_eq!(status("GET / HTTP/1.1\r\n\r\n"), 403);
        assert_eq!(status("POST / HTTP/1.1\r\nHost: localhost\r\n\r\n"), 405);
        assert_eq!(status("GET / HTTP/2\r\nHost: localhost\r\n\r\n"), 400);
        assert_eq!(status("\r\n\r\n"), 400);
        assert_eq!(status(&format!("GET /{} HTTP/1.1\r\n\r\n", "x".repeat(MAX_HEAD_BYTES as usize - 7))), 400);
        assert_eq!(status("GET / HTTP/1.1\r\nHost: [::1]:7\r\n\r\n"), 200);
    }

    #[test]
    fn wrong_folders_and_taken_ports_are_said() {
        let site = Site::new();
        let says = |folder: &Path, port: u16| format!("{:#}", Server::bind(folder, port).unwrap_err());
        assert!(says(&site.dir.path().join("absent"), 0).contains("there is no folder"));
        assert!(says(&site.dir.path().join("secret.txt"), 0).contains("is a file"));
        let port = site.url.trim_end_matches('/').rsplit(':').next().unwrap().parse().unwrap();
        assert!(says(site.dir.path(), port).contains("--port"));
    }
}
