//! An answer's headers about the cache.

use serde_json::json;

use super::{ALIGN, OBSERVE, Stage, turn};

#[tokio::test]
async fn they_tell_the_prefix_and_how_much_of_the_request_is_shared() {
    for (configure, plan) in [(ALIGN, "aligned"), (OBSERVE, "passthrough")] {
        let stage = Stage::with(configure).await;
        let shared = |exchange: &crate::workload::Exchange| {
            exchange.said("bytes-shared").unwrap().parse::<usize>().unwrap()
        };
        let (first, _) = stage.ask(&turn(1)).await;
        assert_eq!((first.said("plan"), first.said("role")), (Some(plan), Some("plain")));
        assert_eq!((shared(&first), first.said("held-ms")), (0, Some("0")));
        let (second, record) = stage.ask(&turn(2)).await;
        assert_eq!(second.said("prefix"), first.said("prefix"), "tools and system stayed");
        assert_eq!(second.said("prefix"), record["prefix"].as_str());
        // All but what frames the blocks of the first request.
        let whole = first.sent.body.len();
        assert!((whole - 300..whole).contains(&shared(&second)), "{} of {whole}", shared(&second));
        let mut other = turn(3);
        other["system"][0]["text"] = json!("You guess.");
        let tools = other["tools"].to_string().len();
        let (third, _) = stage.ask(&other).await;
        assert_ne!(third.said("prefix"), second.said("prefix"));
        // The brackets and the comma of the list are no part of a tool.
        assert_eq!(shared(&third), tools - 3);
    }
}
