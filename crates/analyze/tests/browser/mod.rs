//! A headless Chromium, driven through chromedriver by the WebDriver protocol: JSON over HTTP.
//!
//! Both end with this process, even if it is killed: `setpriv` ends chromedriver, and Chromium ends when the pipe to
//! chromedriver closes.

use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A browser with one page.
pub struct Browser {
    driver: Child,
    port: u16,
    session: String,
}

/// Key codes of WebDriver.
pub const ENTER: &str = "\u{e007}";
pub const DOWN: &str = "\u{e015}";

/// The name of a reference to an element.
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";
/// A page that does not get into a state within this time never does.
const PATIENCE: Duration = Duration::from_secs(20);
/// Answers of chromedriver: opening a page can take long on a busy machine.
const ANSWER: Duration = Duration::from_secs(120);

impl Browser {
    /// Starts the browser with a window of this size.
    pub fn start(width: u32, height: u32) -> Browser {
        let mut driver = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "chromedriver", "--port=0"])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("setpriv starts chromedriver");
        let mut lines = BufReader::new(driver.stdout.take().unwrap()).lines();
        let port = lines.find_map(|line| {
            let line = line.expect("chromedriver prints text");
            line.split_once("successfully on port ")?.1.trim_end_matches('.').parse().ok()
        });
        let mut browser = Browser { driver, port: port.expect("chromedriver prints its port"), session: String::new() };
        let size = format!("--window-size={width},{height}");
        // Chromium's own sandbox does not run as root, and the test opens only its own pages.
        let arguments = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--remote-debugging-pipe",
            &size,
        ];
        let wanted = json!({"capabilities": {"alwaysMatch": {
            "browserName": "chrome",
            "goog:chromeOptions": {"args": arguments},
            "goog:loggingPrefs": {"browser": "ALL"},
        }}});
        let session = browser.request("POST", "/session", Some(&wanted));
        browser.session = format!("/session/{}", session["sessionId"].as_str().unwrap());
        browser
    }

    /// Opens a file, at a place in it that begins with `#` or is empty, and waits until it is loaded.
    pub fn open(&self, file: &Path, place: &str) {
        self.post("/url", &json!({"url": format!("file://{}{place}", file.display())}));
    }

    /// The result of a script, which returns it.
    pub fn run(&self, script: &str) -> Value {
        self.post("/execute/sync", &json!({"script": script, "args": []}))
    }

    /// The result of an expression as text.
    pub fn text(&self, expression: &str) -> String {
        let value = self.run(&format!("return String({expression})"));
        value.as_str().unwrap().to_owned()
    }

    /// Waits until an expression is true.
    pub fn wait(&self, expression: &str) {
        let end = Instant::now() + PATIENCE;
        while self.run(&format!("return Boolean({expression})")) != Value::Bool(true) {
            assert!(Instant::now() < end, "not within {PATIENCE:?}: {expression}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Clicks the first element that a CSS selector finds, as a mouse does: it has to be visible.
    pub fn click(&self, selector: &str) {
        let element = self.element(selector);
        self.post(&format!("/element/{element}/click"), &json!({}));
    }

    /// Types into an element, after what it contains.
    pub fn keys(&self, selector: &str, keys: &str) {
        let element = self.element(selector);
        self.post(&format!("/element/{element}/value"), &json!({"text": keys}));
    }

    /// Replaces the text of an input.
    pub fn fill(&self, selector: &str, text: &str) {
        let element = self.element(selector);
        self.post(&format!("/element/{element}/clear"), &json!({}));
        self.keys(selector, text);
    }

    /// Drags the mouse across an element, from and to these pixels from its middle.
    pub fn drag(&self, selector: &str, from: i32, to: i32) {
        let origin = json!({ELEMENT: self.element(selector)});
        let moved = |x: i32| json!({"type": "pointerMove", "origin": origin, "x": x, "y": 0, "duration": 50});
        let actions =
            json!([moved(from), {"type": "pointerDown", "button": 0}, moved(to), {"type": "pointerUp", "button": 0}]);
        self.post("/actions", &json!({"actions": [{"type": "pointer", "id": "mouse", "actions": actions}]}));
    }

    /// Turns the mouse wheel over an element, downwards by this many pixels.
    pub fn wheel(&self, selector: &str, down: i32) {
        let origin = json!({ELEMENT: self.element(selector)});
        let turn = json!([{"type": "scroll", "origin": origin, "x": 0, "y": 0, "deltaX": 0, "deltaY": down}]);
        self.post("/actions", &json!({"actions": [{"type": "wheel", "id": "wheel", "actions": turn}]}));
    }

    /// A command of Chromium's own protocol.
    pub fn command(&self, name: &str, parameters: Value) -> Value {
        self.post("/goog/cdp/execute", &json!({"cmd": name, "params": parameters}))
    }

    /// The lines of the console since the last call.
    pub fn console(&self) -> Vec<String> {
        let lines = self.post("/se/log", &json!({"type": "browser"}));
        lines.as_array().unwrap().iter().map(|line| line["message"].to_string()).collect()
    }

    fn element(&self, selector: &str) -> String {
        let found = self.post("/element", &json!({"using": "css selector", "value": selector}));
        found[ELEMENT].as_str().unwrap_or_else(|| panic!("no element {selector}")).to_owned()
    }

    fn post(&self, path: &str, body: &Value) -> Value {
        self.request("POST", &format!("{}{path}", self.session), Some(body))
    }

    /// The value that chromedriver answers with; panics with its message if it refuses.
    fn request(&self, method: &str, path: &str, body: Option<&Value>) -> Value {
        let body = body.map_or_else(String::new, Value::to_string);
        let answer = self.exchange(method, path, &body).unwrap_or_else(|error| panic!("{method} {path}: {error}"));
        let mut answer: Value = serde_json::from_slice(&answer).expect("chromedriver answers with JSON");
        assert!(answer["value"]["error"].is_null(), "{method} {path} {body:.300}: {}", answer["value"]["message"]);
        answer["value"].take()
    }

    /// A request and its response's body, on a connection of their own.
    fn exchange(&self, method: &str, path: &str, body: &str) -> std::io::Result<Vec<u8>> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port))?;
        stream.set_read_timeout(Some(ANSWER))?;
        let (port, length) = (self.port, body.len());
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n\
             Content-Length: {length}\r\nConnection: close\r\n\r\n{body}"
        )?;
        let mut stream = BufReader::new(stream);
        let mut length = 0;
        loop {
            let mut line = String::new();
            stream.read_line(&mut line)?;
            if let Some((name, value)) = line.split_once(':')
                && name.eq_ignore_ascii_case("content-length")
            {
                length = value.trim().parse().map_err(std::io::Error::other)?;
            }
            if line.trim().is_empty() {
                break;
            }
        }
        let mut answer = vec![0; length];
        stream.read_exact(&mut answer)?;
        Ok(answer)
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        if !self.session.is_empty() {
            let _ = self.exchange("DELETE", &self.session, "");
        }
        let _ = self.driver.kill();
        let _ = self.driver.wait();
    }
}
