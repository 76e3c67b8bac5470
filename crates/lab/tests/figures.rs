//! The papers' figures in words, beside the drawings of each experiment.

use weir_lab::bench::Bench;
use weir_lab::experiment::{Done, Experiment};
use weir_lab::experiments::{self, ALL};
use weir_lab::micro::sim::Simulated;
use weir_lab::output;

fn run(experiment: &'static Experiment) -> Done {
    let bench = Bench { threads: 2, trials: Some(1), ..Bench::small(&|| Ok(Box::new(Simulated))) };
    experiments::run(experiment, &bench).unwrap()
}

#[test]
fn each_experiment_describes_a_figure_or_says_why_there_is_none() {
    for experiment in ALL {
        let id = experiment.id;
        assert!(!experiment.figures.is_empty(), "{id}");
        for figure in experiment.figures {
            let named = !figure.name.is_empty();
            assert!(!figure.shows.is_empty(), "{id}: {}", figure.name);
            assert_eq!(!figure.axes.is_empty() && !figure.here.is_empty(), named, "{id}: {}", figure.name);
            // A figure that is not drawn here is a diagram, and a text without a figure belongs to a drawing.
            assert!(figure.drawings > 0 || named, "{id}");
            let texts = [figure.axes, figure.shows, figure.here];
            assert!(texts.iter().all(|text| text.is_empty() || text.ends_with('.')), "{id}: {texts:?}");
        }
    }
}

#[test]
fn the_page_and_the_index_have_the_papers_figures_beside_the_drawings() {
    for experiment in ALL.into_iter().filter(|experiment| experiment.not_simulated.is_none()) {
        let (id, done) = (experiment.id, run(experiment));
        let drawings: usize = experiment.figures.iter().map(|figure| figure.drawings).sum();
        assert_eq!(drawings, done.report.drawings().len(), "{id}: each drawing belongs to one figure of the papers");
        let all = [done];
        let html = output::page(&all, &[]);
        let pairs: Vec<&str> = html.split("<figure").skip(1).map(|p| p.split("</figure>").next().unwrap()).collect();
        assert_eq!(pairs.len(), experiment.figures.len(), "{id}");
        let index = output::index(&all, &[]);
        for (pair, figure) in pairs.iter().zip(experiment.figures) {
            assert_eq!(pair.matches("<svg").count(), figure.drawings, "{id}: {}", figure.name);
            assert_eq!(pair.matches("<figcaption>").count(), 1, "{id}: {}", figure.name);
            for text in [figure.name, figure.axes, figure.shows, figure.here] {
                assert!(pair.contains(&weir_lab::figure::escape(text)), "{id}: {text}");
                assert!(index.contains(text), "{id}: {text}");
            }
        }
    }
}
