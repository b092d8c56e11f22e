//! Runs every example, as a reader would, and checks what it says.

use std::process::{Output, Stdio};
use std::time::Duration;

use outbox_testbed::{Server, eventually};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::process::Command;
use tokio::time::timeout;

/// How long anything may take on a busy machine.
const DEADLINE: Duration = Duration::from_secs(60);

/// What a program prints until it ends, which it does well and in time.
async fn output_of(program: &str) -> String {
    let ended = Command::new(program).kill_on_drop(true).output();
    let ended = timeout(DEADLINE, ended).await.expect("it ends in time");
    let Output { status, stdout, stderr } = ended.expect("it can be run");
    let errors = String::from_utf8_lossy(&stderr);
    assert!(status.success(), "{status}: {errors}");
    assert_eq!(errors, "");
    String::from_utf8(stdout).expect("it prints text")
}

#[tokio::test]
async fn quickstart() {
    assert_eq!(
        output_of(env!("CARGO_BIN_EXE_quickstart")).await,
        "delivered: order 1 of 4200 cents\n\
         drained: true\n\
         orders in the table: 1\n"
    );
}

#[tokio::test]
async fn several_databases() {
    let output = output_of(env!("CARGO_BIN_EXE_several-databases")).await;
    let (post, rest): (Vec<&str>, Vec<&str>) = output.lines().partition(|line| line.starts_with("post office"));
    // The post office hears of an invoice while the billing goes on.
    assert_eq!(post, ["post office: letter about order 1"]);
    assert_eq!(
        rest,
        [
            "billing: invoice for order 1",
            "billing: order 1 has its invoice already",
            "invoices in the table: 1",
        ]
    );
}

#[tokio::test]
async fn typed_events() {
    assert_eq!(
        output_of(env!("CARGO_BIN_EXE_typed-events")).await,
        "[first] order_placed, attempt 1\n  \
           mail: order 1 of 3000 cents\n\
         [first] stock: the warehouse does not answer\n\
         [first] order_placed, attempt 2\n  \
           stock: order 1 reserved\n\
         [first] ok\n\
         [second] order_placed, attempt 1\n  \
           mail: order 2 of 4250 cents\n  \
           stock: order 2 reserved\n\
         [second] ok\n\
         [third] order_shipped, attempt 1\n\
         [third] no such parcel\n\
         dead: order_shipped of order 2: no such parcel\n"
    );
}

#[tokio::test]
async fn testing_a_service() {
    let output = output_of(env!("CARGO_BIN_EXE_testing-a-service")).await;
    let mut lines: Vec<&str> = output.lines().collect();
    // The delivery and the next request go on side by side.
    lines[..2].sort_unstable();
    assert_eq!(
        lines,
        [
            "delivered: Ada has a seat",
            "refused: all seats are taken",
            "waiting for its day: 1 ReminderDue",
        ]
    );
}

#[tokio::test]
async fn axum_postgres() {
    let database = Server::Postgres.database("axum_postgres").await;
    let mut service = Command::new(env!("CARGO_BIN_EXE_axum-postgres"))
        .env("DATABASE_URL", database.url())
        .env_remove("LISTEN")
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(service.stdout.take().unwrap()).lines();
    let started = timeout(DEADLINE, lines.next_line())
        .await
        .expect("it starts in time")
        .unwrap()
        .unwrap();
    let address = started.strip_prefix("listening on ").unwrap();

    let (status, body) = http(
        address,
        "POST",
        "/orders",
        r#"{"customer": "Ada", "total_cents": 4200}"#,
    )
    .await;
    assert_eq!((status, body.as_str()), (201, r#"{"order_id":1,"customer":"Ada"}"#));
    // Refused by the database: there is no order, and there will be no mail.
    let (status, _) = http(address, "POST", "/orders", r#"{"customer": "Eve", "total_cents": -1}"#).await;
    assert_eq!(status, 500);
    let (status, _) = http(address, "POST", "/orders", r#"{"customer": "Grace", "total_cents": 1}"#).await;
    assert_eq!(status, 201);

    let mails = eventually("two mails", DEADLINE, async || {
        let (_, mails) = http(address, "GET", "/mails", "").await;
        (mails.matches("Dear").count() == 2).then_some(mails)
    })
    .await;
    assert_eq!(
        mails,
        r#"["Dear Ada, we have your order 1.","Dear Grace, we have your order 3."]"#
    );
    let (status, health) = http(address, "GET", "/ready", "").await;
    assert_eq!(status, 200, "{health}");
    assert!(health.starts_with(r#"{"ready":true,"#), "{health}");
    eventually("both deliveries to be counted", DEADLINE, async || {
        let (_, metrics) = http(address, "GET", "/metrics", "").await;
        metrics
            .contains("outbox_dispatch_success_total{outbox=\"outbox_event\"} 2\n")
            .then_some(())
    })
    .await;

    let kill = format!("kill -TERM {}", service.id().unwrap());
    assert!(Command::new("sh").args(["-c", &kill]).status().await.unwrap().success());
    let status = timeout(DEADLINE, service.wait())
        .await
        .expect("it stops in time")
        .unwrap();
    assert!(status.success(), "{status}");
    assert_eq!(
        lines.next_line().await.unwrap().as_deref(),
        Some("stopped; drained: true")
    );
}

/// One request, one connection: as much HTTP as it takes to ask.
async fn http(address: &str, method: &str, path: &str, body: &str) -> (u16, String) {
    let request = format!(
        "{method} {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let answer = async {
        let mut stream = TcpStream::connect(address).await.expect("it listens");
        stream.write_all(request.as_bytes()).await.expect("it reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.expect("it answers");
        answer
    };
    let answer = timeout(DEADLINE, answer).await.expect("it answers in time");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
    let status = head.split(' ').nth(1).expect("a status").parse().expect("a number");
    (status, body.to_owned())
}
