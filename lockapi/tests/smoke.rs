//! smoke
use lockapi::{BackendExt, lease::Terms, memory::Database};
use std::time::Duration;
#[tokio::test]
async fn smoke() {
    let db = Database::new();
    let a = db.connect().await.unwrap();
    let b = db.connect().await.unwrap();
    let g = a.mutex("x").unwrap().lock().await.unwrap();
    assert!(b.mutex("x").unwrap().try_lock().await.unwrap().is_none());
    let m = b.mutex("x").unwrap();
    let w = tokio::spawn(async move { m.lock().await.unwrap() });
    tokio::time::sleep(Duration::from_millis(50)).await;
    let f = g.fence();
    g.unlock().await.unwrap();
    let g2 = w.await.unwrap();
    assert!(g2.fence().token() > f.token());
    drop(g2);
    let l = a
        .lease("x", Terms::new(Duration::from_millis(300)))
        .unwrap();
    let g = l.acquire().await.unwrap();
    tokio::time::sleep(Duration::from_millis(1000)).await;
    assert!(!g.is_lost());
    println!("{:?} {:?} {:?}", g, g.remaining(), l.peek().await);
    g.release().await.unwrap();
    assert!(
        b.lease("x", Terms::new(Duration::from_millis(300)))
            .unwrap()
            .try_acquire()
            .await
            .unwrap()
            .is_some()
    );
}
