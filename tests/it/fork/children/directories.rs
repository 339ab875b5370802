//! Children that work in a directory of their own.

use serde_json::json;

use super::{FORKED, FREE, Stage, child, forwarded, parent, plan};

#[tokio::test]
async fn a_child_that_works_elsewhere_is_told_so_in_whatever_words_its_client_names_a_directory() {
    let named = ["Working directory: ", "Current directory: ", "cwd: ", "<cwd>"];
    for words in named {
        let stage = Stage::new(|_| ()).await;
        let place = |path: &str| json!({"type": "text", "text": format!("{words}{path}</cwd>\nKeep to it.")});
        let mut lead = parent(FREE, "[[sim:fan_out n=2 tool=Agent field=prompt | text]]");
        lead["system"].as_array_mut().unwrap().push(place("/srv/main"));
        let told = stage.fan_out(&lead).await;
        for (directive, path, is_told) in [(&told[0], "/srv/trees/a", true), (&told[1], "/srv/main", false)] {
            let mut body = child(FREE, directive);
            body["system"].as_array_mut().unwrap().push(place(path));
            let exchange = stage.send(&body).await;
            assert_eq!(plan(&exchange), FORKED, "{words}");
            let sent = forwarded(&exchange).to_string();
            let notice = "in the directory /srv/trees/a, not in that of the main agent (/srv/main)";
            assert_eq!(sent.contains(notice), is_told, "{words}{path}");
        }
    }
}
