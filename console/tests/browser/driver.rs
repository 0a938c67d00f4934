//! A browser that is driven over HTTP, by the protocol of WebDriver.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// Far more than it takes.
const PATIENCE: Duration = Duration::from_secs(30);
/// The name that the protocol has for elements.
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";

pub(crate) struct Driver {
    port: u16,
    child: Child,
    session: String,
    /// Removed with it.
    profile: tempfile::TempDir,
}

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("an address").port()
}

impl Driver {
    pub(crate) fn start() -> Self {
        let port = free_port();
        let child = Command::new("chromedriver")
            .arg(format!("--port={port}"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("chromedriver is installed: apt-get install chromium chromium-driver");
        let profile = tempfile::tempdir().expect("a directory");
        let mut driver = Self {
            port,
            child,
            session: String::new(),
            profile,
        };
        let until = Instant::now() + PATIENCE;
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(Instant::now() < until, "chromedriver does not listen");
            thread::sleep(Duration::from_millis(50));
        }
        let directory = format!("--user-data-dir={}", driver.profile.path().display());
        let arguments = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--disable-dev-shm-usage",
            "--hide-scrollbars",
            &directory,
        ];
        let wanted = json!({ "capabilities": { "alwaysMatch": { "goog:chromeOptions": { "args": arguments }, "goog:loggingPrefs": { "browser": "ALL" } } } });
        let began = driver.call("POST", "/session", &wanted);
        began["sessionId"]
            .as_str()
            .expect("a session")
            .clone_into(&mut driver.session);
        driver
    }

    fn call(&self, method: &str, path: &str, body: &Value) -> Value {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).expect("connected");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        let body = if method == "GET" {
            String::new()
        } else {
            body.to_string()
        };
        let length = body.len();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost:{}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}",
            self.port
        );
        stream.write_all(request.as_bytes()).expect("sent");
        let mut reader = BufReader::new(stream);
        let mut length = 0;
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).expect("a header");
            let line = line.trim().to_lowercase();
            if line.is_empty() {
                break;
            }
            if let Some(value) = line.strip_prefix("content-length:") {
                length = value.trim().parse().expect("a length");
            }
        }
        let mut text = vec![0; length];
        reader.read_exact(&mut text).expect("a body");
        let mut answer: Value = serde_json::from_slice(&text).expect("JSON");
        let value = answer["value"].take();
        assert!(value.get("error").is_none(), "{method} {path}: {value}");
        value
    }

    fn command(&self, command: &str, body: &Value) -> Value {
        self.call(
            "POST",
            &format!("/session/{}/{command}", self.session),
            body,
        )
    }

    pub(crate) fn open(&self, url: &str) {
        self.command("url", &json!({ "url": url }));
    }

    fn find(&self, css: &str) -> String {
        let element = self.command("element", &json!({ "using": "css selector", "value": css }));
        element[ELEMENT].as_str().expect("an element").to_owned()
    }

    pub(crate) fn click(&self, css: &str) {
        let element = self.find(css);
        self.command(&format!("element/{element}/click"), &json!({}));
    }

    pub(crate) fn fill(&self, css: &str, text: &str) {
        let element = self.find(css);
        self.command(
            &format!("element/{element}/value"),
            &json!({ "text": text }),
        );
    }

    /// Presses keys, one after the other, wherever the focus is.
    pub(crate) fn press(&self, keys: &str) {
        let strokes = keys.chars().flat_map(|key| {
            ["keyDown", "keyUp"].map(|kind| json!({ "type": kind, "value": key.to_string() }))
        });
        let strokes: Vec<Value> = strokes.collect();
        let keyboard = json!({ "type": "key", "id": "keyboard", "actions": strokes });
        self.command("actions", &json!({ "actions": [keyboard] }));
    }

    /// What a screen reader could not name: what can be used has a name, and so has what is a region or a picture.
    pub(crate) fn nameless(&self) -> Vec<String> {
        const NAMED: [&str; 10] = [
            "link",
            "button",
            "textbox",
            "searchbox",
            "combobox",
            "spinbutton",
            "radio",
            "table",
            "region",
            "image",
        ];
        let tree = self.devtools("Accessibility.getFullAXTree", &json!({}));
        let nodes = tree["nodes"].as_array().expect("a tree");
        assert!(nodes.len() > 10, "{tree}");
        let nameless = nodes.iter().filter(|node| {
            let role = node["role"]["value"].as_str().unwrap_or_default();
            let name = node["name"]["value"].as_str().unwrap_or_default();
            node["ignored"] != true && NAMED.contains(&role) && name.trim().is_empty()
        });
        nameless.map(Value::to_string).collect()
    }

    pub(crate) fn script(&self, script: &str) -> Value {
        self.command("execute/sync", &json!({ "script": script, "args": [] }))
    }

    /// Runs this in each page that is opened, before all scripts of its own.
    pub(crate) fn prepare(&self, script: &str) {
        let script = json!({ "source": script });
        self.devtools("Page.addScriptToEvaluateOnNewDocument", &script);
    }

    /// Waits until an expression of the page is this.
    pub(crate) fn becomes(&self, expression: &str, wanted: &Value) {
        let until = Instant::now() + PATIENCE;
        loop {
            let is = self.script(&format!("return {expression}"));
            if is == *wanted {
                return;
            }
            assert!(Instant::now() < until, "{expression} is {is}");
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// Waits until the page shows something.
    pub(crate) fn shows(&self, words: &str) {
        let until = Instant::now() + PATIENCE;
        loop {
            let text = self.script("return document.body.innerText");
            if text.as_str().is_some_and(|text| text.contains(words)) {
                return;
            }
            assert!(Instant::now() < until, "{words:?} is not shown: {text}");
            thread::sleep(Duration::from_millis(50));
        }
    }

    fn devtools(&self, command: &str, params: &Value) -> Value {
        self.command(
            "goog/cdp/execute",
            &json!({ "cmd": command, "params": params }),
        )
    }

    /// As on a screen of this width, in the dark or not.
    pub(crate) fn look(&self, width: u32, height: u32, dark: bool) {
        let scheme = if dark { "dark" } else { "light" };
        let feature = json!([{ "name": "prefers-color-scheme", "value": scheme }]);
        self.devtools(
            "Emulation.setEmulatedMedia",
            &json!({ "features": feature }),
        );
        let size = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600 });
        self.devtools("Emulation.setDeviceMetricsOverride", &size);
    }

    pub(crate) fn picture(&self, path: &Path) {
        let url = format!("/session/{}/screenshot", self.session);
        let encoded = self.call("GET", &url, &json!({}));
        let bytes = decoded(encoded.as_str().expect("a picture"));
        std::fs::write(path, bytes).expect("written");
    }

    /// What the browser complained of, such as something that the policy forbids.
    pub(crate) fn complaints(&self) -> Vec<String> {
        let entries = self.command("se/log", &json!({ "type": "browser" }));
        let entries = entries.as_array().cloned().unwrap_or_default();
        entries
            .iter()
            .map(|entry| entry["message"].to_string())
            .collect()
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        if !self.session.is_empty() && !thread::panicking() {
            self.call("DELETE", &format!("/session/{}", self.session), &json!({}));
        }
        // It may have ended.
        let _ended = self.child.kill();
        let _status = self.child.wait();
    }
}

/// Reads base 64.
fn decoded(text: &str) -> Vec<u8> {
    let digit = |byte: u8| match byte {
        b'A'..=b'Z' => Some(byte - b'A'),
        b'a'..=b'z' => Some(byte - b'a' + 26),
        b'0'..=b'9' => Some(byte - b'0' + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    };
    let digits: Vec<u32> = text.bytes().filter_map(digit).map(u32::from).collect();
    let mut bytes = Vec::with_capacity(digits.len() * 3 / 4);
    for four in digits.chunks(4) {
        let bits = four.iter().fold(0, |bits, digit| bits << 6 | digit) << (6 * (4 - four.len()));
        let three = bits.to_be_bytes();
        bytes.extend_from_slice(&three[1..four.len()]);
    }
    bytes
}
